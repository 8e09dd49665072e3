// Look-up tables for Huffman-coded coefficients. One look-up yields up to two of them.
#pragma once

#include <array>
#include <cstdint>

#include "jpeg/tables.h"

namespace custom_op {

// Note [Two coefficients per look-up]
// Most coefficients of a photograph have a short code and a short value. A table is indexed by the
// next kLookupBits bits. Its entry holds the decoded values of the first two coefficients whose
// codes and values all fit into those bits (stb_image's fast AC table holds one), and how far each
// advances in the block. If not even the first fits, the entry holds its symbol and the length of
// its code, or nothing if the code is longer: find() then searches by length.
//
// A DC difference is a coefficient without a run of zeros, so both kinds of table look alike.
// An entry is one integer, because that decides the speed of the loop in block_decoder.cpp:
//
//   bits   0-7   number of bits to drop
//   bits   8-15  advance of the first coefficient, or the length of a code without a value
//   bits  16-31  value of the first coefficient, or the symbol of a code without a value
//   bits  32-47  value of the last coefficient: the second one, or the first one again
//   bits  56-63  advance of all coefficients, with two flags
using HuffmanEntry = uint64_t;

constexpr int kLookupBits = 11;
constexpr uint64_t kEndOfBlock = 128;  // flag of an advance: no more coefficients in this block
constexpr uint64_t kSlow = 64;         // flag of an advance: the entry holds no value

// The signed value that `size` bits encode, from 0 to 15.
inline int extended(int bits, int size) {
  return bits < 1 << size >> 1 ? bits - (1 << size) + 1 : bits;
}

class HuffmanTable {
 public:
  static constexpr int kSize = 1 << kLookupBits;

  // Builds the table and its entries. Does nothing if they were built from the same code last.
  // Returns false if libjpeg refuses the code.
  bool build(const HuffmanCode& code, bool is_dc, HuffmanEntry* entries);

  // Searches the code at the start of `next16`. Returns its length << 8 | symbol, or -1 if there is
  // no such code.
  int find(uint32_t next16) const;

 private:
  bool number_codes();
  void fill(int code, int length, int symbol, HuffmanEntry* entries) const;
  void pair_up(HuffmanEntry* entries) const;

  bool good_ = false, is_dc_ = false;
  HuffmanCode code_;
  std::array<int32_t, 17> max_code_{};  // by length, -1 for none
  std::array<int32_t, 17> offset_{};    // symbol index minus code, by length
};

}  // namespace custom_op
