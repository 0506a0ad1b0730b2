"""The paper in NumPy float64 and plain loops, one sentence at a time, to compare the package with.

Nothing of the package is imported here. Axes: T target or query, S source or key, V vocabulary, K beams, h heads,
d model. Weights are looked up by their Keras paths, {"encoder_0/self_attention/query/kernel": ...}. Masks are nested
lists of booleans, True = may be attended.
"""

import itertools
import math

import numpy as np

PAD_ID = 0
LAYER_NORM_EPSILON = 1e-6  # from the authors' code


def part(weights, name):
    """Returns the weights of the child `name`."""
    return {path[len(name) + 1 :]: weight for path, weight in weights.items() if path.startswith(name + "/")}


# 3.2 Attention


def softmax(logits):
    logits = np.asarray(logits, "float64")
    maximum = max(logits)
    exponentials = [math.exp(logit - maximum) for logit in logits]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    maximum = max(logits)
    log_total = maximum + math.log(sum(math.exp(logit - maximum) for logit in logits))
    return [float(logit - log_total) for logit in logits]


def attention(query, key, value, mask=None):
    """3.2.1, equation (1): Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, for one head.

    query [T, d_k], key [S, d_k], value [S, d_v], mask [T, S] -> output [T, d_v], weights [T, S].
    """
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    (T, d_k), S = query.shape, len(key)
    output, weights = np.zeros((T, value.shape[1])), np.zeros((T, S))
    for t in range(T):
        # 3.2.3: "masking out (setting to -inf) all values ... which correspond to illegal connections"
        allowed = [s for s in range(S) if mask is None or mask[t][s]]
        if not allowed:
            continue
        logits = [float(query[t] @ key[s]) / math.sqrt(d_k) for s in allowed]
        for s, weight in zip(allowed, softmax(logits), strict=True):
            weights[t, s] = weight
            output[t] += weight * value[s]
    return output, weights


def multi_head_attention(query, value, weights, num_heads, mask=None):
    """3.2.2: MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    query [T, d], value [S, d] (also the keys), mask [T, S] -> output [T, d], weights [h, T, S].
    """
    W_Q, W_K, W_V, W_O = (weights[f"{name}/kernel"] for name in ("query", "key", "value", "output"))
    d_k, d_v = W_Q.shape[1] // num_heads, W_V.shape[1] // num_heads
    heads, scores = [], []
    for i in range(num_heads):
        of_key, of_value = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)
        head, score = attention(query @ W_Q[:, of_key], value @ W_K[:, of_key], value @ W_V[:, of_value], mask)
        heads.append(head)
        scores.append(score)
    return np.concatenate(heads, axis=1) @ W_O, np.stack(scores)


def causal(T):
    """3.2.3: "each position in the decoder ... attend[s] to all positions ... up to and including that position"."""
    return [[s <= t for s in range(T)] for t in range(T)]


def near(T, window):
    """4: "considering only a neighborhood of size r ... centered around the respective output position"."""
    return [[abs(s - t) <= window // 2 for s in range(T)] for t in range(T)]


# 3.3 Position-wise feed-forward networks


ACTIVATIONS = {  # functions of one number. The paper uses the first.
    "relu": lambda x: max(0, x),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "swish": lambda x: x / (1 + math.exp(-x)),
}


def feed_forward(x, weights, activation="relu"):
    """Equation (2): FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, at each position alike. x [T, d] -> [T, d]."""
    function = np.vectorize(ACTIVATIONS[activation], otypes=[float])
    hidden = function(x @ weights["hidden/kernel"] + weights["hidden/bias"])
    return hidden @ weights["output/kernel"] + weights["output/bias"]


# 3.4 Embeddings and 3.5 positional encoding


def position_encoding(position, d_model):
    """3.5: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))."""
    encoding = np.zeros(d_model)
    for column in range(d_model):
        i = column // 2
        angle = position / 10000 ** (2 * i / d_model)
        encoding[column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return encoding


def embed(ids, table, position_table=None):
    """3.4: "we multiply those weights by sqrt(d_model)"; 3.5: positions are added. ids [T] -> [T, d]."""
    d_model = table.shape[1]
    rows = []
    for position, token in enumerate(ids):
        encoding = position_encoding(position, d_model) if position_table is None else position_table[position]
        rows.append(math.sqrt(d_model) * table[token] + encoding)
    return np.array(rows)


# 3.1 Encoder and decoder stacks


def layer_norm(x, gamma, beta):
    """Ba et al. 2016: each row of x [T, d] with mean 0 and variance 1, then a gain and an offset."""
    rows = []
    for row in np.asarray(x, "float64"):
        mean = sum(row) / len(row)
        variance = sum((component - mean) ** 2 for component in row) / len(row)
        rows.append((row - mean) / math.sqrt(variance + LAYER_NORM_EPSILON) * gamma + beta)
    return np.array(rows)


def add_and_norm(x, sublayer_output, weights):
    """3.1: "the output of each sub-layer is LayerNorm(x + Sublayer(x))". [T, d] twice -> [T, d]."""
    return layer_norm(np.asarray(x, "float64") + sublayer_output, weights["norm/gamma"], weights["norm/beta"])


def residual(x, function, weights, norm_first):
    """Add & Norm around a sub-layer, or x + Sublayer(LayerNorm(x)), not in the paper. x [T, d] -> output, scores."""
    if norm_first:
        output, scores = function(layer_norm(x, weights["norm/gamma"], weights["norm/beta"]))
        return x + output, scores
    output, scores = function(x)
    return add_and_norm(x, output, weights), scores


def sublayers(x, weights, functions, activation, norm_first):
    """Attentions by their names, then feed-forward, each with its residual: x [T, d] -> [T, d], scores of each."""
    all_scores = []
    for name, function in functions.items():
        x, scores = residual(x, function, part(weights, f"{name}_norm"), norm_first)
        all_scores.append(scores)
    of_hidden = part(weights, "feed_forward")
    function = lambda x: (feed_forward(x, of_hidden, activation), None)  # noqa: E731
    x, _ = residual(x, function, part(weights, "feed_forward_norm"), norm_first)
    return x, *all_scores


def encoder_layer(x, weights, num_heads, mask=None, window=None, activation="relu", norm_first=False):
    """x [S, d] under its padding mask [S] -> [S, d], weights [h, S, S]."""
    allowed = near(len(x), window or 2 * len(x)) & np.array([True] * len(x) if mask is None else mask)
    attention = part(weights, "self_attention")
    functions = {"self_attention": lambda x: multi_head_attention(x, x, attention, num_heads, allowed)}
    return sublayers(x, weights, functions, activation, norm_first)


def decoder_layer(x, memory, weights, num_heads, memory_mask=None, activation="relu", norm_first=False):
    """x [T, d], memory [S, d] under its padding mask [S] -> [T, d], weights [h, T, T] and [h, T, S]."""
    T = len(x)
    allowed = None if memory_mask is None else [memory_mask] * T
    of_self, of_cross = part(weights, "self_attention"), part(weights, "cross_attention")
    functions = {
        "self_attention": lambda x: multi_head_attention(x, x, of_self, num_heads, causal(T)),
        "cross_attention": lambda x: multi_head_attention(x, memory, of_cross, num_heads, allowed),
    }
    return sublayers(x, weights, functions, activation, norm_first)


def transformer(source, target, weights, num_layers, num_heads, num_decoder_layers=None, **kind):
    """Figure 1: source ids [S], target ids [T] -> logits [T, V] and the attention weights of every layer.

    3.4: "we share the same weight matrix between the two embedding layers and the pre-softmax linear transformation".
    `kind` has options that are not in the paper: activation, and norm_first, with a norm at the end of each stack.
    """
    table, positions = weights["embedding/embeddings"], weights.get("embedding/position_embeddings")
    mask = [token != PAD_ID for token in source]
    memory, scores = embed(source, table, positions), {"encoder": [], "decoder": [], "cross": []}
    for i in range(num_layers):
        memory, of_encoder = encoder_layer(memory, part(weights, f"encoder_{i}"), num_heads, mask, **kind)
        scores["encoder"].append(of_encoder)
    if kind.get("norm_first"):
        memory = layer_norm(memory, weights["encoder_norm/gamma"], weights["encoder_norm/beta"])
    x = embed(target, table, positions)
    for i in range(num_decoder_layers or num_layers):
        layer = part(weights, f"decoder_{i}")
        x, of_decoder, of_cross = decoder_layer(x, memory, layer, num_heads, mask, **kind)
        scores["decoder"].append(of_decoder)
        scores["cross"].append(of_cross)
    if kind.get("norm_first"):
        x = layer_norm(x, weights["decoder_norm/gamma"], weights["decoder_norm/beta"])
    return x @ table.T, scores


# 5 Training


def learning_rate(step_num, d_model, warmup_steps):
    """5.3, equation (3): d_model^-0.5 * min(step_num^-0.5, step_num * warmup_steps^-1.5), step_num from 1."""
    return d_model**-0.5 * min(step_num**-0.5, step_num * warmup_steps**-1.5)


def smoothed_cross_entropy(targets, logits, epsilon):
    """5.4 (Szegedy et al. 2015): the mean over real tokens of the cross-entropy against the smoothed distribution.

    That is (1 - epsilon) on the label plus epsilon / V on each of the V tokens. targets [B][T], logits [B][T][V].
    """
    losses = []
    for sentence, sentence_logits in zip(targets, logits, strict=True):
        for label, token_logits in zip(sentence, sentence_logits, strict=True):
            if label == PAD_ID:
                continue
            V, loss = len(token_logits), 0.0
            for token, log_prob in enumerate(log_softmax(token_logits)):
                loss -= ((1 - epsilon) * (token == label) + epsilon / V) * log_prob
            losses.append(loss)
    return sum(losses) / len(losses)


def smoothed_cross_entropy_gradient(targets, logits, epsilon):
    """Derivative of the loss by each logit: (softmax - smoothed distribution) / number of real tokens."""
    count = sum(label != PAD_ID for sentence in targets for label in sentence)
    gradient = np.zeros(np.shape(logits))
    for b, sentence in enumerate(targets):
        for t, label in enumerate(sentence):
            if label == PAD_ID:
                continue
            V = len(logits[b][t])
            for token, probability in enumerate(softmax(logits[b][t])):
                gradient[b, t, token] = (probability - (1 - epsilon) * (token == label) - epsilon / V) / count
    return gradient


def perplexity(targets, logits):
    """6.2, Table 3: exp of the mean negative log-probability of a real token."""
    return math.exp(smoothed_cross_entropy(targets, logits, epsilon=0.0))


def accuracy(targets, logits):
    """Share of real tokens whose logit is the highest."""
    right = [
        int(np.argmax(token_logits)) == label
        for sentence, sentence_logits in zip(targets, logits, strict=True)
        for label, token_logits in zip(sentence, sentence_logits, strict=True)
        if label != PAD_ID
    ]
    return sum(right) / len(right)


def average(checkpoints):
    """6.1, "averaging the last 5 checkpoints": the mean of each weight. A list of lists of arrays -> a list."""
    return [
        sum(np.asarray(weight, "float64") for weight in same) / len(same) for same in zip(*checkpoints, strict=True)
    ]


# 6.1 Search. `next_log_probs(ids)` returns the log-probability of every token after the prefix `ids`.


def markov(logits, start_id):
    """A model whose next token depends on the newest one and its position: logits [L, V, V] -> `next_log_probs`.

    Without positions, two outputs with the same transitions in another order would tie.
    """
    log_probs = [[log_softmax(row) for row in of_position] for of_position in logits]
    return lambda ids: log_probs[len(ids)][ids[-1] if ids else start_id]


def length_penalty(length, alpha):
    """Wu et al. 2016, equation 14: ((5 + n) / 6)^alpha, n counting EOS."""
    return ((5 + length) / 6) ** alpha


def greedy(next_log_probs, end_id, max_length):
    """Appends the most likely token up to and including EOS: ids, log-probability."""
    ids, log_prob = [], 0.0
    while len(ids) < max_length and end_id not in ids:
        log_probs = next_log_probs(ids)
        token = int(np.argmax(log_probs))
        ids, log_prob = [*ids, token], log_prob + log_probs[token]
    return ids, log_prob


def exhaustive_search(next_log_probs, tokens, end_id, max_length, alpha):
    """Every output of at most max_length tokens that ends: (score, log-probability, ids), best first."""
    outputs = []
    inner_tokens = [token for token in range(tokens) if token != end_id]
    for length in range(1, max_length + 1):
        for prefix in itertools.product(inner_tokens, repeat=length - 1):
            ids = [*prefix, end_id]
            log_prob = sum(next_log_probs(ids[:n])[ids[n]] for n in range(length))
            outputs.append((log_prob / length_penalty(length, alpha), log_prob, ids))
    return sorted(outputs, key=lambda output: -output[0])


def beam_search(next_log_probs, end_id, max_length, beam_size, alpha, n_best=1, patience=math.inf):
    """6.1 as an algorithm: (score, log-probability, ids, finished) of the n best, best first.

    A step has 2K candidates. Those that end are finished if they are among the K best, and the K best others remain
    alive. The search stops when no alive output can still beat the n-th finished one, when patience * K have finished,
    or, with one beam, at the first finished one. If none is finished, the alive ones are the result.
    """
    alive, finished, num_finished = [(0.0, [])], [], 0
    for length in range(1, max_length + 1):
        candidates = []
        for log_prob, ids in alive:
            for token, token_log_prob in enumerate(next_log_probs(ids)):
                if token_log_prob > -math.inf:
                    candidates.append((log_prob + token_log_prob, [*ids, token]))
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * beam_size]
        for log_prob, ids in candidates[:beam_size]:
            if ids[-1] == end_id:
                finished.append((log_prob / length_penalty(length, alpha), log_prob, ids, True))
                num_finished += 1
        finished = sorted(finished, key=lambda output: -output[0])[:beam_size]
        alive = [(log_prob, ids) for log_prob, ids in candidates if ids[-1] != end_id][:beam_size]
        if not alive or (beam_size == 1 and finished) or num_finished >= max(1, patience * beam_size):
            break
        n = min(n_best, beam_size)
        if len(finished) >= n and finished[n - 1][0] >= alive[0][0] / length_penalty(max_length, alpha):
            break
    unfinished = [(log_prob / length_penalty(len(ids), alpha), log_prob, ids, False) for log_prob, ids in alive]
    return (finished or unfinished)[:n_best]
