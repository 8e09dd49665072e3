#include "entropy/huffman.h"

#include <algorithm>

namespace custom_op {
namespace {

HuffmanEntry entry_of(uint64_t bits, uint64_t advance, uint16_t value) {
  return bits | advance << 8 | uint64_t{value} << 16 | uint64_t{value} << 32 | advance << 56;
}

// An entry without a value. `length` 0 means that the code is too long for the table.
HuffmanEntry slow_entry_of(uint64_t length, uint64_t symbol) {
  return length << 8 | symbol << 16 | kSlow << 56;
}

uint64_t advance_of(int symbol, bool is_dc) {
  if (is_dc) return 1;
  const int run = symbol >> 4, size = symbol & 15;
  return size == 0 && run != 15 ? kEndOfBlock : static_cast<uint64_t>(run) + 1;
}

}  // namespace

bool HuffmanTable::build(const HuffmanCode& code, bool is_dc, HuffmanEntry* entries) {
  if (code_.defined && is_dc == is_dc_ && code.lengths == code_.lengths &&
      code.symbols == code_.symbols) {
    return good_;
  }
  code_ = code;
  is_dc_ = is_dc;
  good_ = number_codes();
  if (!good_) return false;
  std::fill_n(entries, kSize, slow_entry_of(0, 0));
  int next = 0, index = 0;
  for (int length = 1; length <= kLookupBits; ++length, next <<= 1) {
    for (int i = 0; i < code_.lengths[length]; ++i) {
      fill(next++, length, code_.symbols[index++], entries);
    }
  }
  if (!is_dc) pair_up(entries);
  return true;
}

bool HuffmanTable::number_codes() {
  int code = 0, index = 0;
  for (int length = 1; length <= 16; ++length, code <<= 1) {
    offset_[length] = index - code;
    index += code_.lengths[length];
    code += code_.lengths[length];
    max_code_[length] = code_.lengths[length] != 0 ? code - 1 : -1;
    if (code >= 1 << length) return false;  // no code may be all ones
  }
  // No size of a DC difference has more than 4 bits.
  const auto end = code_.symbols.begin() + index;
  return !is_dc_ || std::all_of(code_.symbols.begin(), end, [](int size) { return size < 16; });
}

void HuffmanTable::fill(int code, int length, int symbol, HuffmanEntry* entries) const {
  const int free_bits = kLookupBits - length, size = symbol & 15, unused = free_bits - size;
  HuffmanEntry* const at = entries + (code << free_bits);
  if (unused < 0) {
    std::fill_n(at, 1 << free_bits,
                slow_entry_of(static_cast<uint64_t>(length), static_cast<uint64_t>(symbol)));
    return;
  }
  const uint64_t advance = advance_of(symbol, is_dc_);
  for (int bits = 0; bits < 1 << size; ++bits) {
    const auto value = static_cast<uint16_t>(extended(bits, size));
    std::fill_n(at + (bits << unused), 1 << unused,
                entry_of(static_cast<uint64_t>(length + size), advance, value));
  }
}

// Adds what follows the first coefficient of each entry, if it fits.
void HuffmanTable::pair_up(HuffmanEntry* entries) const {
  HuffmanEntry single[kSize];
  std::copy_n(entries, kSize, single);
  for (int i = 0; i < kSize; ++i) {
    const HuffmanEntry first = single[i];
    if ((first >> 56 & (kSlow | kEndOfBlock)) != 0) continue;
    const HuffmanEntry second = single[static_cast<uint64_t>(i) << (first & 255) & (kSize - 1)];
    const uint64_t bits = (first & 255) + (second & 255);
    if ((second >> 56 & kSlow) != 0 || bits > kLookupBits) continue;
    const uint64_t advance = (first >> 56) + (second >> 56);
    entries[i] = bits | (first & 0xFFFFFF00) | (second & 0xFFFF00000000) | advance << 56;
  }
}

int HuffmanTable::find(uint32_t next16) const {
  for (int length = 1; length <= 16; ++length) {
    const auto code = static_cast<int>(next16 >> (16 - length));
    if (code > max_code_[length]) continue;
    return length << 8 | code_.symbols[static_cast<size_t>(code + offset_[length])];
  }
  return -1;
}

}  // namespace custom_op
