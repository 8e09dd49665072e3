// Decodes one crop, and as little of the rest of the image as the file allows.
#pragma once

#include <optional>
#include <vector>

#include "entropy/mcu_reader.h"
#include "jpeg/cropped_header.h"
#include "jpeg/decompressor.h"
#include "pixels/libjpeg_rows.h"
#include "samples/baseline_decoder.h"

namespace custom_op {

// Keeps its buffers and tables for the next image. Not thread-safe.
class RegionDecoder {
 public:
  // Reads the header. decode() can follow any number of times: tables and side index are read once.
  // `jpeg` must not change until the last one has returned, nor may `side_index`, which is
  // optional, see Note [Side index].
  void open(Bytes jpeg, int64_t max_pixels, Bytes side_index = {});

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int orientation() const { return parsed_ ? exif_orientation(jpeg_, header_) : 1; }

  // True if the side index given to open() turned out to belong to another file.
  bool has_stale_index() const {
    return side_index_.size != 0 && readable_ && !(*readable_ && reader_.uses_side_index());
  }

  // Throws JpegError if the box is not inside the image, or inside the transposed image.
  void check(const Box& box, bool transposed = false) const;

  // Makes a side index out of what decode() passes from here on, of at most `share` of the file's
  // size, unless the file has one. Call it after open().
  void record_side_index(double share) { record_share_ = share; }
  // Passes the rest of the file; returns the index. Empty if none is being made.
  std::vector<uint8_t> finish_side_index();

  // Decodes the crop. Throws JpegError if the box is not inside the image or the data that it needs
  // is damaged. `only_libjpeg` makes the reference for tests.
  void decode(const Box& box, RowSink& sink, bool only_libjpeg = false);

 private:
  // Replaces libjpeg's entropy decoder, see Note [Reading MCUs for libjpeg].
  struct Feed {
    McuReader* reader;
    McuCover cover;
    int64_t per_row = 0, row = 0, col = 0;
    int64_t ready = 0;  // decoded MCUs that libjpeg has not asked for, from `next` on
    const Block* next = nullptr;
  };

  static boolean decode_mcu_cb(j_decompress_ptr cinfo, JBLOCKROW* blocks);
  bool start_reader();
  bool decode_baseline(const Box& box, RowSink& sink);
  bool decode_cover(const Box& box, RowSink& sink);
  void decode_in_order(const Box& box, RowSink& sink);
  bool start_phase() noexcept;
  bool crop_phase(const Box& box, LibjpegRows::Part& part) noexcept;

  Decompressor libjpeg_;
  LibjpegRows rows_{libjpeg_};
  Bytes jpeg_{}, side_index_{};
  Header header_;
  bool parsed_ = false;
  std::optional<bool> readable_;  // by reader_; unknown before the first crop
  int64_t height_ = 0, width_ = 0, max_pixels_ = 0;
  double record_share_ = 0;
  ScanTables tables_;
  McuReader reader_;
  BaselineDecoder baseline_;
  Feed feed_{};
  std::vector<uint8_t> cropped_header_;
};

}  // namespace custom_op
