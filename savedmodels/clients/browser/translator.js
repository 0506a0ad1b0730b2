// Translates by an ONNX export, as tf_transformer/extensions/interop/engines/litert_client.py does: texts become ids, the file's function runs,
// and ids become texts. It runs in browsers and in Node.

import {SentencePiece} from "./sentencepiece.js"

export const LANGUAGES = ["source_language", "target_language"]
const BYTES_OF_A_TOKEN = 64  // at most: SentencePiece's longest piece has 16 characters
const UNKNOWN = 3  // the first id of a piece; those before are control symbols
const SPACES = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
const AT_THE_END = new RegExp(`[${SPACES}]+$`), SPACES_AND_CONTROLS = new RegExp(`[${SPACES}\\x00-\\x1f]+`, "g")
const utf8 = new TextEncoder(), replacing = new TextDecoder("utf-8", {ignoreBOM: true})

// A vocabulary that SentencePiece numbers itself, for both sides.
class Plain {
  static files = ["tokenizer.model"]

  constructor(files) {
    this.engine = new SentencePiece(files["tokenizer.model"])
  }

  encode(text) {
    return this.engine.encode(text.replace(/[\x00-\x1f]/g, " ")).map(([, id]) => id)
  }

  decode(ids) {
    return this.engine.decode(ids.filter(id => id > 2))
  }
}

// SentencePiece models whose pieces have other numbers in vocabulary.json and, for sources, in source_vocabulary.json if
// there is one: MarianMT's source.spm and target.spm, or sentencepiece.bpe.model for both sides.
class Pieces {
  constructor(files) {
    const read = name => JSON.parse(replacing.decode(files[name]))
    const target = read("vocabulary.json"), separate = "source_vocabulary.json" in files
    this.hasCodes = !("sentencepiece.bpe.model" in files)
    this.engine = new SentencePiece(files[this.hasCodes ? "source.spm" : "sentencepiece.bpe.model"])
    const speller = separate ? new SentencePiece(files["target.spm"]) : this.engine
    const pieces = (separate ? read("source_vocabulary.json") : target).map((piece, id) => [piece, id])
    this.ids = new Map(pieces.filter(([piece, id]) => piece && id >= UNKNOWN))
    this.texts = target.map((piece, id) => id > UNKNOWN ? spelling(piece, speller) : new Uint8Array())
    // The ids of the white space before a token, if it counts, and of the token. Earlier exports have only the latter.
    const tokens = Object.entries("tokens.json" in files ? read("tokens.json") : {})
    this.tokens = new Map(tokens.map(([token, ids]) => [token, [ids].flat()]))
    const known = new Set(speller.pieces.map(({text}) => text))
    const escaped = [...this.tokens.keys()].toSorted((a, b) => b.length - a.length).map(token => token.replace(/[^\p{L}\p{N}_]/gu, "\\$&"))
    this.added = new RegExp(escaped.length ? `(${escaped.join("|")})` : "$^", "s")
    for (const [token, {length}] of this.tokens) {
      if (target.includes(token) && length === 1 && !known.has(token)) this.texts[target.indexOf(token)] = utf8.encode(` ${token}`)
    }
  }

  // Added tokens are matched first. Every second part is one.
  encode(text) {
    const parts = text.replace(AT_THE_END, "").split(this.added)
    return parts.flatMap((part, i) => i % 2
      ? this.tokens.get(part).slice(AT_THE_END.test(parts[i - 1]) ? 0 : -1)
      : this.split(part).map(piece => this.ids.get(piece) ?? UNKNOWN))
  }

  split(text) {
    const [code = ""] = this.hasCodes && text.match(/^>>[^]*?<</) || []
    const pieces = this.engine.encode(text.slice(code.length)).map(([piece]) => piece)
    return code ? [code, ...pieces] : pieces
  }

  decode(ids) {
    let bytes = Uint8Array.from(ids.flatMap(id => [...this.texts[id]]))
    const isSpace = byte => byte === 32 || byte >= 9 && byte <= 13
    while (bytes.length && isSpace(bytes[0])) bytes = bytes.subarray(1)
    while (bytes.length && isSpace(bytes.at(-1))) bytes = bytes.subarray(0, -1)
    return replacing.decode(bytes)
  }
}

// The text of a piece: one byte for a byte piece, nothing for a control symbol.
function spelling(piece, engine) {
  const {kind} = engine.pieces[engine.idOf(piece)]
  if (kind === 6) return Uint8Array.of(parseInt(piece.slice(3, 5), 16))
  return utf8.encode(kind === 3 ? "" : piece.replaceAll("\u2581", " "))
}

// The names of the tokenizer's files, by those of a folder's.
export const isOfTokenizer = name => name.endsWith(".model") || name.endsWith(".spm") || /vocabulary.json$|^tokens.json$/.test(name)

// The tokenizer of an export, from the contents of its files by name, as bytes.
export const tokenizerOf = files => "vocabulary.json" in files ? new Pieces(files) : new Plain(files)

export class Translator {
  // Args: onnxruntime; its session of model.onnx; the contents of model.json; and of the tokenizer's files, by name.
  constructor(ort, session, facts, files) {
    this.ort = ort
    this.session = session
    this.facts = facts
    this.tokenizer = tokenizerOf(files)
    this.options = {length_penalty: facts.length_penalty, max_length: facts.max_length}
  }

  // The ids of a text, those of the beginning alone of a huge one.
  sourceIds(text) {
    text = text.replace(/\p{Surrogate}/gu, "   ")  // half a character is three bytes that are no text
    const most = BYTES_OF_A_TOKEN * (this.facts.max_source_length + 1)
    if (text.length * 3 > most && utf8.encode(text).length > most) {
      const bytes = utf8.encode(text.replace(SPACES_AND_CONTROLS, " "))
      let end = Math.min(most, bytes.length)
      while (end < bytes.length && (bytes[end] & 0xc0) === 0x80) end--
      text = replacing.decode(bytes.subarray(0, end))
    }
    return this.tokenizer.encode(text)
  }

  // The n best translations of a text, best first: each with text, score, log_prob, finished and length. The array says
  // also how many tokens the text has, and whether the model has read all of them.
  async translate(text, n = 1, options = {}) {
    const {facts, ort} = this, ids = this.sourceIds(text), read = ids.slice(0, facts.max_source_length)
    const values = {...facts, ...options}, number = (kind, value) => new ort.Tensor(kind, [value], [1])
    const source = [...(facts.language_ids ? [this.code("source_language", values)] : []), ...read, facts.ids.end]
    const inputs = {
      source: new ort.Tensor("int32", source, [1, source.length]),
      n_best: number("int32", n),
      length_penalty: number("float32", values.length_penalty),
      max_length: number("int32", values.max_length),
    }
    if (facts.language_ids) inputs.target_language = number("int32", this.code("target_language", values))
    const found = await this.session.run(inputs), width = found.ids.dims[1], lengths = [...found.lengths.data]
    const used = Math.max(1, Math.min(n, lengths.filter(length => length > 0).length))
    const answers = lengths.slice(0, used).map((length, k) => {
      const finished = found.finished.data[k] > 0
      return {
        text: this.tokenizer.decode([...found.ids.data.slice(k * width, k * width + length)]),
        score: found.scores.data[k],
        log_prob: found.log_probs.data[k],
        finished,
        length: length - finished,
      }
    })
    for (const tensor of Object.values(found)) tensor.dispose()
    return Object.assign(answers, {tokens: ids.length, truncated: ids.length > read.length})
  }

  code(name, values) {
    const id = this.facts.language_ids[values[name]]
    if (id === undefined) throw new RangeError(`${name}: expected one of the model's languages, got ${values[name]}`)
    return id
  }
}
