// Decodes crops of common baseline files without libjpeg, bit-identical to it. Only for AVX2.
#pragma once

#include <vector>

#include "aligned.h"
#include "entropy/mcu_reader.h"
#include "jpeg/cropped_header.h"
#include "rows.h"

namespace custom_op {

// Keeps its buffers for the next image. Not thread-safe.
class BaselineDecoder {
 public:
  // True for grayscale, and for YCbCr with chroma of full or half width and height.
  static bool supports(Bytes jpeg, const Header& header);

  // Decodes the crop with a reader that was started with the same header and tables. The header
  // must be supported and the box inside the image. Returns false if the data is or may be damaged;
  // libjpeg must then decide.
  bool decode(McuReader& reader, const Header& header, const ScanTables& tables, const Box& box,
              RowSink& sink);

 private:
  // The samples of one component in the MCU rows that were decoded last.
  struct Plane {
    int horizontal, vertical;  // sampling factors
    int first_block;           // of this component in an MCU
    const uint16_t* quantization;
    int64_t columns, rows;   // samples of the image from the left edge of the cover, and down
    int64_t stride, height;  // of `samples`; the height is a power of 2
    AlignedVector<uint8_t> samples;

    // The first sample of the cover in row y of the image's samples.
    uint8_t* row(int64_t y);
    // The row of the image nearest to row y of twice as many rows, except y / 2 itself.
    uint8_t* row_beside(int64_t y);
  };

  void prepare(const Header& header, const ScanTables& tables, const Box& box, int64_t mcu_rows);
  bool decode_mcu_rows(McuReader& reader, int64_t mcu_row, int64_t rows);
  bool decode_mcu_row(McuReader& reader, int64_t mcu_row);
  bool decode_two_mcu_rows(McuReader& reader, int64_t mcu_row);
  bool transform_all(const Block* blocks, int64_t mcus, int64_t column, int64_t mcu_row);
  bool transform(const Block* blocks, int64_t mcus, int64_t column, int64_t mcu_row, Plane& plane);
  void repeat_edges(int64_t mcu_row, Plane& plane);
  void write_row(int64_t y, const Box& box, uint8_t* out);
  void write_half_row(int64_t y, const Box& box, uint8_t* out);
  const uint8_t* full_row(Plane& plane, int64_t y, int64_t width, AlignedVector<uint8_t>& out);
  const uint16_t* half_row(Plane& plane, int64_t y, int64_t width, AlignedVector<uint16_t>& out);

  const Header* header_ = nullptr;
  McuCover cover_{};
  int blocks_per_mcu_ = 0;
  std::vector<Plane> planes_;
  std::vector<const int16_t*> blocks_;
  AlignedVector<uint8_t> blue_, red_, gray_;
  AlignedVector<uint16_t> blue_sums_, red_sums_;
};

}  // namespace custom_op
