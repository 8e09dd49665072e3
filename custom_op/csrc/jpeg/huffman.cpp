#include "jpeg/huffman.h"

#include <algorithm>

namespace custom_op {
namespace {

// Zigzag to natural order. A run in damaged data can lead past the end of the block: 16 extra
// entries catch it, as in libjpeg.
constexpr uint8_t kNaturalOrder[64 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
    40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
    29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

// The signed value that `size` bits encode.
int extend(uint32_t bits, int size) {
  const int value = static_cast<int>(bits);
  return value < 1 << (size - 1) ? value - (1 << size) + 1 : value;
}

int advance_of(int symbol) {
  const int run = symbol >> 4, size = symbol & 15;
  return size == 0 && run != 15 ? HuffmanTable::kEndOfBlock : run + 1;
}

}  // namespace

void HuffmanTable::build(const JHUFF_TBL& table, bool is_dc) {
  if (built_ && is_dc == is_dc_ &&
      std::equal(lengths_.begin() + 1, lengths_.end(), table.bits + 1) &&
      std::equal(symbols_.begin(), symbols_.end(), table.huffval)) {
    return;
  }
  built_ = true;
  is_dc_ = is_dc;
  std::copy_n(table.bits, 17, lengths_.begin());
  std::copy_n(table.huffval, 256, symbols_.begin());
  entries_.fill({0, 0, 0});
  int code = 0, index = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    offset_[length] = index - code;
    for (int i = 0; i < lengths_[length] && index < 256; ++i) {
      fill(code++, length, symbols_[index++]);
    }
    max_code_[length] = lengths_[length] != 0 ? code - 1 : -1;
  }
}

void HuffmanTable::fill(int code, int length, int symbol) {
  const int free_bits = kLookupBits - length;
  if (free_bits < 0 || code >= 1 << length) return;
  const int size = is_dc_ ? symbol : symbol & 15;
  const int advance = is_dc_ ? 0 : advance_of(symbol);
  for (int rest = 0; rest < 1 << free_bits; ++rest) {
    Entry& entry = entries_[code << free_bits | rest];
    if (size > free_bits) {
      entry = {static_cast<int16_t>(symbol), 0, static_cast<uint8_t>(length)};
      continue;
    }
    const int value =
        size == 0 ? 0 : extend(static_cast<uint32_t>(rest) >> (free_bits - size), size);
    entry = {static_cast<int16_t>(value), static_cast<uint8_t>(length + size),
             static_cast<uint8_t>(advance)};
  }
}

bool HuffmanTable::take_symbol(BitReader& bits, Entry entry, int& symbol) const {
  if (entry.advance != 0) {
    symbol = entry.value;
    bits.drop(entry.advance);
    return true;
  }
  const int next = static_cast<int>(bits.peek(16));
  for (int length = kLookupBits + 1; length <= 16; ++length) {
    const int code = next >> (16 - length);
    if (code > max_code_[length]) continue;
    symbol = symbols_[(code + offset_[length]) & 255];
    bits.drop(length);
    return true;
  }
  return false;
}

namespace {

bool take_dc(BitReader& bits, const HuffmanTable& table, int& predictor) {
  bits.refill();
  const auto entry = table.look_up(bits);
  int difference = entry.value;
  if (entry.bits != 0) {
    bits.drop(entry.bits);
  } else {
    int size;
    if (!table.take_symbol(bits, entry, size)) return false;
    difference = size == 0 ? 0 : extend(bits.take(size), size);
  }
  // Damaged data can overflow the sum; unsigned arithmetic wraps as in libjpeg.
  predictor =
      static_cast<int>(static_cast<unsigned>(predictor) + static_cast<unsigned>(difference));
  return true;
}

template <bool kKeep>
bool take_ac(BitReader& bits, const HuffmanTable& table, JCOEF* block) {
  for (int k = 1; k < 64;) {
    bits.refill();
    const auto entry = table.look_up(bits);
    if (entry.bits != 0) {
      bits.drop(entry.bits);
      if (entry.advance == HuffmanTable::kEndOfBlock) return true;
      k += entry.advance;
      if (kKeep) block[kNaturalOrder[k - 1]] = entry.value;
      continue;
    }
    int symbol;
    if (!table.take_symbol(bits, entry, symbol)) return false;
    const int advance = advance_of(symbol), size = symbol & 15;
    if (advance == HuffmanTable::kEndOfBlock) return true;
    k += advance;
    if (size == 0) continue;
    const int value = extend(bits.take(size), size);
    if (kKeep) block[kNaturalOrder[k - 1]] = static_cast<JCOEF>(value);
  }
  return true;
}

}  // namespace

bool decode_block(BitReader& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor,
                  JCOEF* block) {
  if (!take_dc(bits, dc, predictor)) return false;
  block[0] = static_cast<JCOEF>(predictor);
  return take_ac<true>(bits, ac, block);
}

bool skip_block(BitReader& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor) {
  return take_dc(bits, dc, predictor) && take_ac<false>(bits, ac, nullptr);
}

}  // namespace custom_op
