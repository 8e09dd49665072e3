// Rows of pixels from libjpeg-turbo.
#pragma once

#include <vector>

#include "jpeg/decompressor.h"
#include "rows.h"

namespace custom_op {

// Keeps its buffers for the next image. Not thread-safe.
class LibjpegRows {
 public:
  // The part of libjpeg's output that is wanted, in its rows and columns.
  struct Part {
    int64_t skip, count;   // rows to drop, then to keep
    int64_t first_column;  // left edge of what is kept in a row
    int64_t width;
  };

  explicit LibjpegRows(Decompressor& libjpeg) : libjpeg_(libjpeg) {}

  // Asks for pixels as every decoder here makes them; call this before jpeg_start_decompress.
  void request_rgb();
  // Reads the next rows of libjpeg's output. Returns false on an error.
  bool read(const Part& part, RowSink& sink);
  // Reads the image to its last row. Returns false on an error.
  bool read_to_the_end() noexcept;

 private:
  int read_phase(JSAMPROW* rows, int wanted) noexcept;
  void place_scratch_rows(size_t row_bytes);
  const uint8_t* rgb_of(const uint8_t* row, int64_t width);

  Decompressor& libjpeg_;
  std::vector<uint8_t> scratch_, rgb_;
  std::vector<JSAMPROW> row_pointers_;
};

}  // namespace custom_op
