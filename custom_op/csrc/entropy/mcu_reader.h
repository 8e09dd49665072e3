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
  // `header.baseline` must be set; `jpeg` and `header` must not change while it is read. Returns
  // false if libjpeg refuses the tables or the restart markers cannot be trusted. A side index that
  // is empty or does not fit the file is ignored, as it is if there are restart markers.
  bool start(Bytes jpeg, const Header& header, const ScanTables& tables, Bytes side_index = {});

  // Makes a side index of at most `most_bytes` out of the MCUs that are passed from here on. Call
  // it after start(). Does nothing if decoding can start elsewhere already, by markers or an index.
  void record_side_index(size_t most_bytes);
  // Passes the rest of the scan; returns the index. Empty if none is being made, the data is
  // damaged or the index would be too large.
  std::vector<uint8_t> finish_side_index();

  // Forgets the position, so that damage met before does not affect the next reads.
  void rewind();

  // Moves to the MCU with this index, in scan order. Returns false if the data is damaged.
  bool seek(int64_t mcu);

  // Decodes up to `wanted` MCUs, at least one, and moves behind them. Returns how many; 0 if the
  // data is damaged. Their blocks are valid until the next call.
  int64_t take(int64_t wanted);
  const Block* blocks() const { return blocks_.data(); }

  // The same at two places, of which the second is the later one: see Note [Two runs at once].
  bool seek_two(int64_t mcu, int64_t other);
  int64_t take_two(int64_t wanted);
  const Block* other_blocks() const { return blocks_.data() + half(); }

  // Whether the side index given to start() fits the file, as far as it has been used.
  bool uses_side_index() const { return !side_index_.empty() && !changed_; }

  // The mean number of MCUs between places at which decoding can start.
  int64_t start_interval() const {
    return side_index_.empty() ? interval_ : side_index_.interval(interval_);
  }

 private:
  static constexpr size_t kBlocks = 48;  // at once: in the first-level cache with the tables

  // A place in the scan.
  struct Place {
    BitReader bits;
    std::array<int32_t, 4> predictors{};
    int64_t next = 0;         // index of the next MCU
    int64_t segment_end = 0;  // index of the first MCU after the current segment
  };

  bool build_tables(const Header& header, const ScanTables& tables);
  bool lay_out(const Header& header, const ScanTables& tables);
  void enter(int64_t segment, Place& place) const;
  bool enter_entry(const SideIndex::Entry& entry, Place& place);
  // Moves to where decoding can start, at the MCU or before it.
  bool approach(int64_t mcu, Place& place);
  bool skip_to(int64_t mcu, Place& place);
  bool leave_segment(Place& place) const;
  bool decode(int64_t mcus, Keep keep, Place& place);
  bool decode_two(int64_t mcus, Keep keep);
  bool move(int64_t mcus, Block* blocks, Place& place) const;
  void record(const Place& place);

  int64_t most_mcus() const { return static_cast<int64_t>(kBlocks / layout_.size()); }
  // As many as that, but not past the end of a group whose start may be recorded.
  int64_t most_mcus(const Place& place) const {
    return recording_ ? most_mcus() - place.next % most_mcus() : most_mcus();
  }
  SideIndex::Scan scan() const { return {jpeg_, *header_, most_mcus()}; }
  const uint8_t* scan_data() const { return jpeg_.data + header_->scan_data; }
  // The number of blocks that one of two places gets.
  size_t half() const { return kBlocks / 2 / layout_.size() * layout_.size(); }

  Bytes jpeg_{};
  const Header* header_ = nullptr;
  int64_t interval_ = 0;  // MCUs of a segment
  std::vector<Range> segments_;
  SideIndex side_index_;
  SideIndex record_;  // the index being made
  bool recording_ = false;
  size_t most_bytes_ = 0;  // of it
  int64_t recorded_ = 0;   // MCUs it covers
  bool changed_ = false;   // the file is not that of the side index where decoding started
  HuffmanTables huffman_;
  std::vector<uint8_t> layout_;  // the component of each block of an MCU
  const HuffmanEntry* first_dc_ = nullptr;
  std::array<Block, kBlocks> blocks_;
  Place place_, other_;
};

}  // namespace custom_op
