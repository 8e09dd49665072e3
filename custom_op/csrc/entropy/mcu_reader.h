// Decodes any MCUs of a baseline scan, starting at the nearest restart marker or entry of a side
// index before them.
#pragma once

#include <vector>

#include "entropy/block_decoder.h"
#include "entropy/side_index.h"
#include "jpeg/restarts.h"

namespace custom_op {

// Keeps its tables for the next image. Not thread-safe.
class McuReader {
 public:
  // `header.baseline` must be set; `jpeg` must not change while it is read. Returns false if
  // libjpeg refuses the tables or the restart markers cannot be trusted. A side index that is empty
  // or does not fit the file is ignored, as it is if there are restart markers.
  bool start(Bytes jpeg, const Header& header, const ScanTables& tables, Bytes side_index = {});

  // Builds the side index of the file, with an entry every `interval` MCUs. Call start() first,
  // without an index. Returns an empty one if the file has restart markers or its data is damaged.
  std::vector<uint8_t> build_side_index(const Header& header, int64_t interval);

  // Forgets where it is: what was damaged before has no effect on what is read next.
  void rewind() { enter(0); }

  // Moves to the MCU with this index, in scan order. Returns false if the data is damaged.
  bool seek(int64_t mcu);

  // Decodes up to `wanted` MCUs, at least one, and moves behind them. Returns how many; 0 if the
  // data is damaged. Their blocks are valid until the next call.
  int64_t take(int64_t wanted);
  const Block* blocks() const { return blocks_.data(); }

 private:
  static constexpr size_t kBlocks = 48;  // at once: in the first-level cache with the tables

  bool build_tables(const Header& header, const ScanTables& tables);
  bool lay_out(const Header& header, const ScanTables& tables);
  void enter(int64_t segment);
  bool enter_entry(int64_t number);
  bool skip(int64_t mcus);
  bool sum_up(const Block* end);

  Bytes jpeg_{};
  int64_t interval_ = 0;
  std::vector<Range> segments_;
  SideIndex side_index_;
  HuffmanTables huffman_;
  std::vector<uint8_t> layout_;  // the component of each block of an MCU
  const HuffmanEntry* first_dc_ = nullptr;
  std::array<Block, kBlocks> blocks_;

  BitReader bits_;
  std::array<int32_t, 4> predictors_{};
  int64_t next_ = 0;         // index of the next MCU
  int64_t segment_end_ = 0;  // index of the first MCU after the current segment
};

}  // namespace custom_op
