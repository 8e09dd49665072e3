// Baseline Huffman decoding of 8x8 blocks. One table look-up resolves a code and its value.
#pragma once

#include <array>
#include <cstdint>

#include "jpeg/bits.h"
#include "jpeg/decompressor.h"

namespace custom_op {

// Note [One look-up per coefficient]
// Most coefficients of a photograph have a short code and a short value. A table is indexed by the
// next kLookupBits bits. If code and value fit into those bits, the entry holds the decoded value,
// the number of bits to drop and the distance to the next coefficient (as the fast AC table of
// stb_image does). If only the code fits, the entry holds its symbol and length. Longer codes are
// found by the canonical search by length.
class HuffmanTable {
 public:
  static constexpr int kLookupBits = 10;
  static constexpr int kEndOfBlock = 64;

  struct Entry {
    int16_t value;    // of the coefficient; if bits == 0, the symbol
    uint8_t bits;     // length of code and value; 0 if they are too long for the table
    uint8_t advance;  // distance to the next coefficient; if bits == 0, length of the code
  };

  // libjpeg must have accepted `table`. Does nothing if it equals the table built last.
  void build(const JHUFF_TBL& table, bool is_dc);

  Entry look_up(const BitReader& bits) const { return entries_[bits.peek(kLookupBits)]; }
  // Takes the code of an entry with bits == 0. Returns false if the table has no such code.
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

// Decodes one block, in natural order, into `block`, which must be all zeros. `predictor` is the
// last DC value of the component. Returns false if a table has no such code.
bool decode_block(BitReader& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor,
                  JCOEF* block);

// The same, but discards the AC coefficients.
bool skip_block(BitReader& bits, const HuffmanTable& dc, const HuffmanTable& ac, int& predictor);

}  // namespace custom_op
