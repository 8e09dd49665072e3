// The quantization and Huffman tables of a baseline scan, as its header defines them.
#pragma once

#include <array>

#include "jpeg/header.h"

namespace custom_op {

struct HuffmanCode {
  bool defined = false;
  std::array<uint8_t, 17> lengths{};   // number of codes of each length, from 1 to 16
  std::array<uint8_t, 256> symbols{};  // in the order of their codes, then zeros
};

struct ScanTables {
  struct Selection {
    int quantization, dc, ac;
  };

  alignas(32) std::array<std::array<uint16_t, 64>, 4> quantization{};  // in natural order
  std::array<bool, 4> quantization_defined{};
  std::array<HuffmanCode, 4> dc, ac;
  std::array<Selection, 4> components{};  // of the frame
};

// The natural position of each coefficient in zigzag order.
inline constexpr std::array<uint8_t, 64> kNaturalOrder = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// `header.baseline` must be set. Returns false if a table is missing or looks damaged; libjpeg must
// then decide whether the file is valid.
bool parse_tables(Bytes jpeg, const Header& header, ScanTables& tables);

}  // namespace custom_op
