// The page: what is typed goes to the worker, one text at a time, the newest one last.

const by = id => document.getElementById(id)
const LANGUAGES = ["source_language", "target_language"]
const PAUSE = 200  // milliseconds without a key before a text is translated
const worker = new Worker("worker.js", {type: "module"})
const megabytes = bytes => (bytes / 1e6).toFixed(1)
let isReady = false, isRunning = false, isWaiting = false, timer = 0

function changed(pause) {
  clearTimeout(timer)
  timer = setTimeout(ask, pause)
  by("best").ariaBusy = "true"
}

function ask() {
  timer = 0
  isWaiting = !isReady || isRunning
  if (isWaiting) return
  isRunning = true
  const options = Object.fromEntries(LANGUAGES.filter(name => by(name).value).map(name => [name, by(name).value]))
  if (options.target_language) by("best").lang = options.target_language.replace("_", "-")
  worker.postMessage({text: by("text").value, n: +by("n").value, options})
}

function ready({facts, seconds}) {
  isReady = true
  by("loading").hidden = true
  const number = facts.parameters.toLocaleString("en")
  by("facts").textContent = `In this browser: no text leaves it. ${number} parameters, ${facts.dtype}, loaded in ${seconds.toFixed(1)} s.`
  for (let n = 1; n <= facts.beam_size; n++) by("n").append(new Option(n))
  for (const name of facts.language_ids ? LANGUAGES : []) {
    const names = Object.keys(facts.language_ids).map(code => [named(code), code]).sort(([a], [b]) => a.localeCompare(b))
    for (const [text, code] of names) by(name).append(new Option(text, code, false, code === facts[name]))
    by(name).closest("label").hidden = false
  }
  if (!facts.language_ids && facts.source_language && facts.target_language) {
    document.title = `${named(facts.source_language)} → ${named(facts.target_language)}`
    document.querySelector("h1").textContent = document.title
    by("best").lang = facts.target_language
  }
  changed(0)
}

// The name of a language, of a code such as "de" or "deu_Latn".
function named(code) {
  try {
    return new Intl.DisplayNames("en", {type: "language"}).of(code.replace("_", "-"))
  } catch {
    return code
  }
}

function show({text, answers, tokens, truncated, milliseconds}) {
  const isOnly = answers.length === 1
  by("best").replaceChildren(...answers.map(answer => {
    const line = document.createElement("li"), translation = document.createElement("span")
    translation.className = "text"
    translation.dir = "auto"
    translation.textContent = answer.text + (answer.finished || !tokens ? "" : " … (not finished)")
    line.append(translation)
    if (!isOnly) {
      const score = document.createElement("span")
      score.className = "number"
      score.textContent = `score ${answer.score.toFixed(3)}`
      line.append(score)
    }
    return line
  }))
  by("status").textContent = tokens ? `${Math.round(milliseconds)} ms` : ""
  const notes = []
  if (truncated) notes.push(`The text has ${tokens} tokens, more than this model reads: the rest was ignored.`)
  if (/[.!?…]["'»”)]*\s+["'«„“(]*\p{Lu}/u.test(text)) notes.push("This looks like several sentences. The end may be lost: translate one at a time.")
  by("note").textContent = notes.join(" ")
  by("note").hidden = !notes.length
}

worker.addEventListener("message", ({data}) => {
  if (data.loaded !== undefined) {
    by("progress").value = data.loaded / data.total
    by("loaded").textContent = `Loading the model … ${megabytes(data.loaded)} of ${megabytes(data.total)} MB`
  } else if (data.facts) {
    ready(data)
  } else {
    isRunning = false
    by("error").hidden = !data.error
    by("error").textContent = data.error ?? ""
    if (data.error && !isReady) by("loading").hidden = true
    if (data.answers) show(data)
    if (isWaiting) ask()
    else if (!timer) by("best").ariaBusy = "false"
  }
})
worker.addEventListener("error", event => {
  by("loading").hidden = true
  by("error").hidden = false
  by("error").textContent = `This browser cannot run the translator: ${event.message ?? "its worker did not start"}`
})
by("text").addEventListener("input", () => changed(PAUSE))
for (const name of ["n", ...LANGUAGES]) by(name).addEventListener("change", () => changed(0))
by("form").addEventListener("submit", event => event.preventDefault())
