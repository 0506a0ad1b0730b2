// Puts the page, onnxruntime-web, which npm brings, and an ONNX export into one new folder that any static server serves:
//
//     node savedmodels/clients/browser/build.mjs onnx/mine web/mine
//
// The first is the folder of an export or of its versions, which means the newest.

import {execFileSync} from "node:child_process"
import fs from "node:fs"
import path from "node:path"
import {fileURLToPath} from "node:url"
import {gzipSync} from "node:zlib"

const PAGE = ["index.html", "page.js", "sentencepiece.js", "translator.js", "worker.js"]
const here = path.dirname(fileURLToPath(import.meta.url))

// The folder itself if it holds a model, else the newest of its versions that does.
function newest(folder) {
  const names = fs.existsSync(folder) ? fs.readdirSync(folder).filter(name => /^\d+$/.test(name)) : []
  const versions = names.sort((a, b) => b - a).map(name => path.join(folder, name))
  const found = [folder, ...versions].find(one => fs.existsSync(path.join(one, "model.onnx")))
  if (!found) throw new Error(`expected the folder of an ONNX export or of its versions, found no model.onnx in ${folder}`)
  return found
}

// Write all into a new folder `made`; returns how many bytes the page loads.
function write(source, made) {
  const npm = path.join(made, "npm"), sizes = {}
  for (const folder of ["model", "runtime", "npm"]) fs.mkdirSync(path.join(made, folder), {recursive: true})
  fs.copyFileSync(path.join(here, "package.json"), path.join(npm, "package.json"))
  const quietly = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--prefer-offline"]
  execFileSync("npm", ["install", "--silent", ...quietly], {cwd: npm, stdio: ["ignore", "ignore", "inherit"]})
  const runtime = path.join(npm, "node_modules", "onnxruntime-web", "dist")
  for (const name of PAGE) fs.copyFileSync(path.join(here, name), path.join(made, name))
  fs.copyFileSync(path.join(runtime, "ort.wasm.bundle.min.mjs"), path.join(made, "runtime", "ort.js"))
  const add = (name, contents) => {  // what the worker loads, and says how much of it is there
    fs.writeFileSync(path.join(made, name), contents)
    sizes[name] = contents.length
  }
  add("runtime/ort.wasm.gz", gzipSync(fs.readFileSync(path.join(runtime, "ort-wasm-simd-threaded.wasm")), {level: 9}))
  for (const name of fs.readdirSync(source)) add(`model/${name}`, fs.readFileSync(path.join(source, name)))
  fs.rmSync(npm, {recursive: true})
  fs.writeFileSync(path.join(made, "files.json"), `${JSON.stringify(sizes)}\n`)
  return Object.values(sizes).reduce((sum, size) => sum + size, 0)
}

function build(model, output) {
  const source = newest(model), made = `${path.resolve(output)}.new`
  if (fs.existsSync(output)) throw new Error(`expected a new folder, but ${output} exists`)
  try {
    const size = write(source, made)
    fs.renameSync(made, output)
    console.log(`${output}: a page, which loads ${(size / 1e6).toFixed(1)} MB`)
  } finally {
    fs.rmSync(made, {recursive: true, force: true})
  }
}

const [model, output, ...others] = process.argv.slice(2)
try {
  if (!output || others.length) throw new Error("expected the folder of an ONNX export and a new folder")
  build(model, output)
} catch (error) {
  console.error(`error: ${error.message}`)
  process.exitCode = 2
}
