// SentencePiece (https://github.com/google/sentencepiece) as far as translating needs it: texts to pieces and ids, and back.
// It reads the library's own file, a model of the kind unigram or BPE, and computes what the library computes.

const UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6  // kinds of pieces; 1 is a normal one
const UNIGRAM = 1, BPE = 2  // kinds of models
const SPACE = "\u2581", REPLACEMENT = "\ufffd", UNKNOWN_TEXT = " \u2047 "
const utf8 = new TextEncoder(), plain = new TextDecoder("utf-8", {ignoreBOM: true})

// The fields of a protobuf message: [number, value], a number or, of strings and messages, bytes.
function* fields(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  let place = 0
  const varint = () => {
    let value = 0
    for (let factor = 1; ; factor *= 128) {
      const byte = view.getUint8(place++)
      value += (byte & 127) * factor
      if (byte < 128) return value
    }
  }
  while (place < bytes.length) {
    const key = varint(), number = Math.floor(key / 8), wire = key % 8
    if (wire === 0) yield [number, varint()]
    else if (wire === 1) { place += 8; yield [number, view.getFloat64(place - 8, true)] }
    else if (wire === 5) { place += 4; yield [number, view.getFloat32(place - 4, true)] }
    else if (wire === 2) {
      const size = varint()
      if (size > bytes.length - place) throw new RangeError("it ends too early")
      place += size
      yield [number, bytes.subarray(place - size, place)]
    } else throw new RangeError(`no such kind of field: ${wire}`)
  }
}

// The length of the character that begins at a place of UTF-8, or 0 if none does.
function characterAt(bytes, place) {
  const first = bytes[place]
  if (first < 0x80) return 1
  const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2
  if (first < 0xc2 || first > 0xf4 || place + length > bytes.length) return 0
  for (let i = 1; i < length; i++) if ((bytes[place + i] & 0xc0) !== 0x80) return 0
  const second = bytes[place + 1]
  const wrong = first === 0xe0 && second < 0xa0 || first === 0xed && second > 0x9f || first === 0xf0 && second < 0x90
  return wrong || first === 0xf4 && second > 0x8f ? 0 : length
}

// The rules that a model has for texts: other characters for some, and what white space means.
class Normalizer {
  constructor(bytes, symbols) {
    this.symbols = symbols
    this.prefix = this.trim = this.escape = true
    for (const [number, value] of fields(bytes)) {
      if (number === 3) this.prefix = value > 0
      if (number === 4) this.trim = value > 0
      if (number === 5) this.escape = value > 0
      if (number === 2 && value.length) {  // a double array of keys in UTF-8, and the texts that their values point at
        const copy = new Uint8Array(value), size = new DataView(copy.buffer).getUint32(0, true)
        this.units = new Uint32Array(copy.buffer.slice(4, 4 + size))
        this.texts = copy.subarray(4 + size)
      }
    }
  }

  // What stands for the beginning of a text in UTF-8: [the text, how many bytes it stands for].
  begin(bytes, place) {
    const own = this.symbols.longest(bytes, place)
    if (own) return [plain.decode(bytes.subarray(place, place + own)), own]
    let length = 0, value = 0
    if (this.units) {
      const offset = unit => (unit >>> 10) << ((unit & 512) >>> 6)
      let node = offset(this.units[0])
      for (let i = place; i < bytes.length; i++) {
        node ^= bytes[i]
        const unit = this.units[node]
        if (((unit & 0x800000ff) >>> 0) !== bytes[i]) break
        node ^= offset(unit)
        if (unit & 256) [length, value] = [i + 1 - place, this.units[node] & 0x7fffffff]
      }
    }
    if (length) return [plain.decode(this.texts.subarray(value, this.texts.indexOf(0, value))), length]
    length = characterAt(bytes, place)
    return length ? [plain.decode(bytes.subarray(place, place + length)), length] : [REPLACEMENT, 1]
  }

  normal(text, isSuffix) {
    const bytes = utf8.encode(text), space = this.escape ? SPACE : " "
    let place = 0, found = "", afterSpace = this.trim
    while (this.trim && place < bytes.length) {
      const [part, length] = this.begin(bytes, place)
      if (part !== " ") break
      place += length
    }
    if (place === bytes.length) return ""
    if (this.prefix && !isSuffix) found += space
    while (place < bytes.length) {
      let [part, length] = this.begin(bytes, place)
      if (afterSpace) part = part.replace(/^ +/, "")
      if (part) {
        found += part.replaceAll(" ", space)
        afterSpace = part.endsWith(" ")
      }
      if (!this.trim) afterSpace = false
      place += length
    }
    while (this.trim && found.endsWith(space)) found = found.slice(0, -space.length)
    return this.prefix && isSuffix ? found + space : found
  }
}

// Symbols that stay one piece in a text, such as "<2de>".
class Symbols {
  constructor(texts) {
    this.all = texts.map(text => utf8.encode(text)).sort((a, b) => b.length - a.length)
  }

  // The length of the longest one at a place of UTF-8.
  longest(bytes, place) {
    const found = this.all.find(symbol => symbol.every((byte, i) => bytes[place + i] === byte))
    return found ? found.length : 0
  }
}

export class SentencePiece {
  // Args: the contents of the library's file.
  constructor(bytes) {
    this.pieces = []
    this.ids = new Map()
    this.reserved = new Map()
    this.kind = UNIGRAM
    let normalizer = new Uint8Array()
    for (const [number, value] of fields(bytes)) {
      if (number === 1) this.addPiece(value)
      if (number === 3) normalizer = value
      if (number === 2) {
        for (const [setting, choice] of fields(value)) {
          if (setting === 3) this.kind = choice
          if (setting === 24) this.isSuffix = choice > 0
          if (setting === 35) this.hasBytes = choice > 0
        }
      }
      if (number === 5 && [...fields(value)].some(([setting, rules]) => setting === 2 && rules.length)) {
        throw new RangeError("it has rules for outputs, which are not supported here")
      }
    }
    if (this.kind !== UNIGRAM && this.kind !== BPE) throw new RangeError(`its kind is ${this.kind}, neither unigram nor BPE`)
    this.unknown = this.pieces.findIndex(({kind}) => kind === UNKNOWN)
    const texts = kind => this.pieces.filter(piece => piece.kind === kind).map(({text}) => text)
    const scores = this.pieces.filter(({kind}) => kind === 1).map(({score}) => score)
    this.lowest = scores.reduce((a, b) => Math.min(a, b), Infinity)
    this.highest = scores.reduce((a, b) => Math.max(a, b), -Infinity)
    this.longest = this.pieces.reduce((most, {text}) => Math.max(most, [...text].length), 0)
    this.symbols = new Symbols(texts(USER_DEFINED))
    this.normalizer = new Normalizer(normalizer, this.symbols)
  }

  addPiece(bytes) {
    const piece = {text: "", score: 0, kind: 1}
    for (const [number, value] of fields(bytes)) {
      if (number === 1) piece.text = plain.decode(value)
      if (number === 2) piece.score = value
      if (number === 3) piece.kind = value
    }
    const isOfTexts = ![UNKNOWN, CONTROL, BYTE].includes(piece.kind)
    ;(isOfTexts ? this.ids : this.reserved).set(piece.text, this.pieces.length)
    this.pieces.push(piece)
  }

  idOf(piece) {
    return this.reserved.get(piece) ?? this.ids.get(piece) ?? this.unknown
  }

  // The pieces of a text: [text, id] each.
  encode(text) {
    const normal = this.normalizer.normal(text, this.isSuffix)
    const found = [], split = normal ? (this.kind === BPE ? this.merged(normal) : this.likeliest(normal)) : []
    let wasUnknown = false
    for (const [piece, id] of split) {
      const isUnknown = id === this.unknown
      if (isUnknown && this.hasBytes) {
        for (const byte of utf8.encode(piece)) {
          const name = `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`
          found.push([name, this.idOf(name)])
        }
      } else if (isUnknown && wasUnknown) found.at(-1)[0] += piece
      else found.push([piece, id])
      wasUnknown = isUnknown
    }
    return found
  }

  // By a unigram model: the pieces of the greatest sum of scores, in the library's precision.
  likeliest(text) {
    const characters = [...text], sizes = characters.map(one => utf8.encode(one).length)
    const best = Array.from({length: characters.length + 1}, () => ({score: 0, from: -1, id: -1}))
    for (let from = 0; from < characters.length; from++) {
      let piece = "", size = 0, isPiece = false
      for (let to = from + 1; to <= characters.length && to - from <= this.longest; to++) {
        piece += characters[to - 1]
        size += sizes[to - 1]
        const id = this.ids.get(piece)
        if (id === undefined || this.pieces[id].kind === UNUSED) continue
        const isOwn = this.pieces[id].kind === USER_DEFINED
        const score = (isOwn ? size * this.highest - 0.1 : this.pieces[id].score) + best[from].score
        if (best[to].from < 0 || score > best[to].score) best[to] = {score: Math.fround(score), from, id}
        isPiece ||= to === from + 1
      }
      if (isPiece) continue
      const score = Math.fround(Math.fround(this.lowest - 10) + best[from].score)
      if (best[from + 1].from < 0 || score > best[from + 1].score) best[from + 1] = {score, from, id: this.unknown}
    }
    const found = []
    for (let to = characters.length; to > 0; to = best[to].from) {
      found.push([characters.slice(best[to].from, to).join(""), best[to].id])
    }
    return found.reverse()
  }

  // By a BPE model: characters, of which the two neighbours with the greatest score become one piece, again and again.
  merged(text) {
    const parts = [], unused = new Map(), bytes = utf8.encode(text)
    for (let place = 0; place < bytes.length;) {
      const own = this.symbols.longest(bytes, place), length = own || characterAt(bytes, place) || 1
      const piece = plain.decode(bytes.subarray(place, place + length))
      parts.push({piece, isFixed: own > 0, before: parts.length - 1, after: parts.length + 1})
      place += length
    }
    parts.at(-1).after = -1
    const pairs = new Heap((a, b) => b.score - a.score || a.left - b.left)
    const add = (left, right) => {
      if (left < 0 || right < 0 || parts[left].isFixed || parts[right].isFixed) return
      const piece = parts[left].piece + parts[right].piece, id = this.ids.get(piece)
      if (id === undefined) return
      pairs.push({left, right, score: this.pieces[id].score, size: piece.length})
      if (this.pieces[id].kind === UNUSED) unused.set(piece, [parts[left].piece, parts[right].piece])
    }
    for (let i = 1; i < parts.length; i++) add(i - 1, i)
    while (pairs.size) {
      const {left, right, size} = pairs.pop(), [one, other] = [parts[left], parts[right]]
      if (!one.piece || !other.piece || one.piece.length + other.piece.length !== size) continue  // it is merged already
      one.piece += other.piece
      one.after = other.after
      if (other.after >= 0) parts[other.after].before = left
      other.piece = ""
      add(one.before, left)
      add(left, one.after)
    }
    const found = []
    const write = piece => {
      const id = this.idOf(piece)
      if (this.pieces[id].kind === UNUSED && unused.has(piece)) unused.get(piece).forEach(write)
      else found.push([piece, id])
    }
    for (let i = 0; i >= 0; i = parts[i].after) write(parts[i].piece)
    return found
  }

  // The text of ids.
  decode(ids) {
    let text = "", bytes = [], isBegin = true, sawSpace = false
    const write = () => {  // one replacement for each byte that is part of no character
      const all = Uint8Array.from(bytes)
      for (let place = 0; place < all.length;) {
        const length = characterAt(all, place)
        text += length ? plain.decode(all.subarray(place, place + length)) : REPLACEMENT
        place += length || 1
      }
      bytes = []
    }
    for (const id of ids) {
      let {text: piece, kind} = this.pieces[id]
      if (kind === BYTE) {
        bytes.push(parseInt(piece.slice(3, 5), 16))
        continue
      }
      write()
      if (sawSpace || text) isBegin = false
      sawSpace = false
      if (kind === UNKNOWN) text += UNKNOWN_TEXT
      if (kind === UNKNOWN || kind === CONTROL) continue
      if (isBegin && (this.normalizer.prefix || this.normalizer.trim) && piece.startsWith(SPACE)) {
        piece = piece.slice(1)
        sawSpace = !this.normalizer.trim
      }
      text += piece.replaceAll(SPACE, " ")
    }
    write()
    return text
  }
}

// A queue whose first element is the least one.
class Heap {
  constructor(compare) {
    this.compare = compare
    this.all = []
  }

  get size() {
    return this.all.length
  }

  push(value) {
    const {all, compare} = this
    let place = all.push(value) - 1
    while (place > 0 && compare(value, all[(place - 1) >> 1]) < 0) {
      all[place] = all[(place - 1) >> 1]
      place = (place - 1) >> 1
    }
    all[place] = value
  }

  pop() {
    const {all, compare} = this, first = all[0], value = all.pop()
    let place = 0
    while (all.length && 2 * place + 1 < all.length) {
      let child = 2 * place + 1
      if (child + 1 < all.length && compare(all[child + 1], all[child]) < 0) child++
      if (compare(value, all[child]) <= 0) break
      all[place] = all[child]
      place = child
    }
    if (all.length) all[place] = value
    return first
  }
}
