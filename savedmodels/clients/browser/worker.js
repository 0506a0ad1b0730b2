// Loads the model and translates, beside the page, which so never stops.

import * as ort from "./runtime/ort.js"
import {Translator, isOfTokenizer} from "./translator.js"

// The files of files.json by name, as bytes; those that are packed are unpacked.
async function read(files, tell) {
  const entries = Object.entries(files), total = entries.reduce((sum, [, size]) => sum + size, 0)
  let loaded = 0
  const contents = await Promise.all(entries.map(async ([name]) => {
    const answer = await fetch(name)
    if (!answer.ok) throw new Error(`expected the file ${name}, got HTTP ${answer.status}`)
    const parts = []
    for (const reader = answer.body.getReader(); ;) {
      const {done, value} = await reader.read()
      if (done) break
      parts.push(value)
      loaded += value.length
      tell(Math.min(loaded, total), total)
    }
    const bytes = new Uint8Array(await new Blob(parts).arrayBuffer())
    const isPacked = name.endsWith(".gz") && bytes[0] === 0x1f && bytes[1] === 0x8b  // else the server has unpacked it
    return [name, isPacked ? await unpacked(bytes) : bytes]
  }))
  return Object.fromEntries(contents)
}

async function unpacked(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))
  return new Uint8Array(await new Response(stream).arrayBuffer())
}

async function check(model, facts) {
  if (!crypto.subtle) return  // only https and localhost have it
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", model))
  const found = [...digest].map(byte => byte.toString(16).padStart(2, "0")).join("")
  if (found !== facts.sha256) throw new Error(`model.onnx with SHA-256 ${found}, where model.json says ${facts.sha256}`)
}

async function load() {
  const began = performance.now(), list = await fetch("files.json")
  if (!list.ok) throw new Error(`expected the file files.json, got HTTP ${list.status}`)
  let told = 0
  const files = await read(await list.json(), (loaded, total) => {
    if (loaded < total && performance.now() - told < 100) return
    told = performance.now()
    postMessage({loaded, total})
  })
  ort.env.wasm.wasmBinary = files["runtime/ort.wasm.gz"]
  if (!crossOriginIsolated) ort.env.wasm.numThreads = 1
  const own = Object.fromEntries(Object.entries(files).map(([name, bytes]) => [name.replace("model/", ""), bytes]))
  const facts = JSON.parse(new TextDecoder().decode(own["model.json"]))
  await check(own["model.onnx"], facts)
  const session = await ort.InferenceSession.create(own["model.onnx"], {executionProviders: ["wasm"]})
  const names = Object.keys(own).filter(isOfTokenizer)
  const translator = new Translator(ort, session, facts, Object.fromEntries(names.map(name => [name, own[name]])))
  await translator.translate("")
  postMessage({facts, seconds: (performance.now() - began) / 1000})
  return translator
}

const loading = load()
loading.catch(error => postMessage({error: error.message}))
addEventListener("message", async ({data: {text, n, options}}) => {
  const translator = await loading
  try {
    const began = performance.now(), answers = await translator.translate(text, n, options)
    const {tokens, truncated} = answers
    postMessage({text, answers: [...answers], tokens, truncated, milliseconds: performance.now() - began})
  } catch (error) {
    postMessage({error: error.message})
  }
})
