// Places inside a scan at which decoding can start, kept beside a file that stays as it is.
#pragma once

#include <array>
#include <vector>

#include "jpeg/header.h"

namespace custom_op {

// Note [Side index]
// Decoding can start in the middle of a scan if the position of a bit and the DC predictors there
// are known. Restart markers make them known by changing the file. A side index stores them for
// every n-th MCU, apart from the file:
//
//   "JIX", version 2
//   u32    n, little-endian as all numbers
//   u64    size of the file
//   u64    hash of its tables, frame and scan header
//   u32    checksum of this index, without this number
//   u8[5]  parameters of the Rice codes below, see Note [Rice codes]
//   then, for MCU n, 2n, 3n ..., without gaps between bits
//     Rice   bits since the entry before, counted in the file, stuffed bytes included
//     Rice   change of each component's predictor, zigzag-coded
//     8 bit  hash of the 8 bytes at the position
//
// Whoever decodes with an index must notice that the file has changed without reading all of it:
// size and header are compared when the index is read, the 8 bytes when decoding starts at them.
// A damaged index could give wrong predictors, and so wrong pixels: hence its checksum.
class SideIndex {
 public:
  struct Entry {
    uint64_t bit;  // of the next bit, from the start of the file
    std::array<int16_t, 4> predictors;
    uint8_t check;
  };

  // Starts an empty index for a file. `interval` must be at least 1.
  void begin(int64_t interval, uint64_t first_bit);
  void add(uint64_t bit, const std::array<int32_t, 4>& predictors, Bytes jpeg);
  std::vector<uint8_t> serialize(Bytes jpeg, const Header& header) const;

  // Reads an index. Returns false if it is damaged or belongs to another file.
  bool parse(Bytes index, Bytes jpeg, const Header& header);

  // MCUs between entries, 0 without an index.
  int64_t interval() const { return interval_; }
  // The entry of MCU number * interval(). Returns false if the file has changed there.
  bool find(int64_t number, Bytes jpeg, Entry& entry) const;
  void clear();

 private:
  int64_t interval_ = 0;
  std::vector<Entry> entries_;  // the first one is the start of the scan
};

}  // namespace custom_op
