// Decodes the pixels of one crop, and as little else as the file allows.
#pragma once

#include <vector>

#include "jpeg/cropped_header.h"
#include "jpeg/mcu_reader.h"
#include "jpeg/trim.h"
#include "pixels/session.h"

namespace custom_op {

enum class Color { kRgb, kYcbcr };

struct DecodeOptions {
  Color color = Color::kRgb;
  int scale = 1;  // 1, 2, 4 or 8: decode at 1/scale of the size
};

// Takes the rows of a crop, top to bottom, 3 bytes a pixel.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Rows follow from the first one. Called again when the decoder has to start over.
  virtual void begin() = 0;
  virtual void row(const uint8_t* pixels) = 0;
  // Where the crop's rows lie one behind the other, if the decoder may write them there itself;
  // row() is not called then.
  virtual uint8_t* place() { return nullptr; }
};

// Keeps its buffers and tables from image to image. For one thread at a time.
class RegionDecoder {
 public:
  // Reads the header. `jpeg` must stay as it is until decode() is over.
  void open(Bytes jpeg, int64_t max_pixels);

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int orientation() const { return parsed_ ? exif_orientation(jpeg_, header_) : 1; }

  // Throws JpegError when the box is not inside the image, seen upright or as stored.
  void check(const Box& box, bool transposed = false) const;

  // The crop as a small JPEG of its own, see trim(). Throws JpegError when the box is outside.
  Trimmed trim(const Box& box) const;

  // Decodes the crop. With options.scale == s, pixel (y, x) of the rows covers the image from
  // (s * (box.top / s + y), s * (box.left / s + x)) on, and there are enough of them to cover the
  // box. Throws JpegError when the box is not inside the image or the data it needs is damaged.
  void decode(const Box& box, const DecodeOptions& options, RowSink& sink);

 private:
  // The decoder's reader of MCUs in the place of libjpeg's, see Note [Reading MCUs for libjpeg].
  struct Feed {
    McuReader reader;
    int64_t first = 0, per_row = 0, cols = 0, row = 0, col = 0;
  };
  struct Rows {
    int64_t skip, count;   // output rows to drop, then to keep
    int64_t first_column;  // of the crop in the decoded rows
    int64_t width;         // of the crop
  };

  static boolean decode_mcu_cb(j_decompress_ptr cinfo, JBLOCKROW* blocks);
  bool decode_cover(const Box& box, const DecodeOptions& options, RowSink& sink);
  void decode_in_order(const Box& box, const DecodeOptions& options, RowSink& sink);
  bool start_phase(const DecodeOptions& options) noexcept;
  bool crop_phase(const Box& box, Rows& rows) noexcept;
  int read_phase(JSAMPROW* rows, int wanted) noexcept;
  bool last_row_phase() noexcept;
  bool read(const Rows& rows, RowSink& sink);
  bool read_into(uint8_t* out, const Rows& rows, size_t first, size_t stride);
  bool converts();
  const uint8_t* convert(const uint8_t* row, int64_t width);

  Session session_;
  Bytes jpeg_{};
  Header header_;
  bool parsed_ = false;
  int64_t height_ = 0, width_ = 0, max_pixels_ = 0;
  Color color_ = Color::kRgb;
  Feed feed_;
  std::vector<uint8_t> cropped_header_, scratch_, above_, converted_;
  std::vector<JSAMPROW> row_pointers_;
};

}  // namespace custom_op
