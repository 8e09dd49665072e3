// Baseline Huffman decoding of 8x8 blocks, by tables that resolve a code and its value at once.
#pragma once

#include <array>
#include <cstdint>

#include "jpeg/bits.h"
#include "pixels/session.h"

namespace custom_op {

// Note [One look-up per coefficient]
// Most coefficients of a photograph need few bits: a short code and a short value. A table indexed
// by the next kLookupBits bits holds, where code and value fit, the finished value, the bits to
// drop and the distance to the next coefficient (the technique of stb_image's fast AC table). Where
// only the code fits, the entry holds its symbol and length; where not even that, the canonical
// search by length finds it.
class HuffmanTable {
 public:
  static constexpr int kLookupBits = 10;
  static constexpr int kEndOfBlock = 64;

  struct Entry {
    int16_t value;    // of the coefficient, or the symbol where bits == 0
    uint8_t bits;     // of code and value, 0 where they are too long for the table
    uint8_t advance;  // distance to the next coefficient, or the code's length where bits == 0
  };

  // `table` was accepted by libjpeg. Does nothing when it is the one built last.
  void build(const JHUFF_TBL& table, bool is_dc);

  Entry look_up(const BitReader& bits) const { return entries_[bits.peek(kLookupBits)]; }
  // Takes the code of an entry with bits == 0. False for a code that is in no table.
  bool take_symbol(BitReader& bits, Entry entry, int& symbol) const;

 private:
  void fill(int code, int length, int symbol);

  bool built_ = false, is_dc_ = false;
  std::array<UINT8, 17> lengths_{};
  std::array<UINT8, 256> symbols_{};
  std::array<int32_t, 17> max_code_{};  // by length, -1 for none
  std::array<int32_t, 17> offset_{};    // symbol index minus code, by length
  std::array<Entry, 1 << kLookupBits> entries_{};
};

// Decodes one block into `block`, all zeros before, in natural order. `predictor` is the last DC
// value of the component. False for a code that is in no table.
bool decode_block(BitReader& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor,
                  JCOEF* block);

// The same without keeping the AC coefficients.
bool skip_block(BitReader& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor);

}  // namespace custom_op
