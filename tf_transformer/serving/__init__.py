"""What is served: the contract (`export`), what lies in its folder (`publish`), a loader like TensorFlow Serving's
(`loader`) and the checks that an export passes before it is published (`check`, `probe`)."""
