// Parses the marker segments of a JPEG up to the first scan, without libjpeg.
#pragma once

#include <array>
#include <vector>

#include "types.h"

namespace custom_op {

struct Segment {
  uint8_t marker;
  size_t begin;  // offset of the FF byte before the marker
  size_t end;    // one past the payload
};

struct Component {
  int horizontal, vertical;  // sampling factors
};

struct Header {
  std::vector<Segment> segments;  // after SOI, up to and including the first SOS
  uint8_t frame_marker = 0;       // 0xC0 ... 0xCF
  int precision = 0;
  int64_t height = 0, width = 0;
  int component_count = 0;
  std::array<Component, 4> components{};
  int64_t restart_interval = 0;  // in MCUs, 0 for none
  size_t frame = 0;              // offset of the frame marker
  size_t scan_data = 0;          // offset of the first entropy-coded byte
  bool baseline = false;         // Huffman-coded, 8 bits, all components in one sequential scan

  // Valid if baseline. A single component counts as not subsampled, as the standard defines.
  int64_t mcu_height = 0, mcu_width = 0;
  int64_t mcu_rows = 0, mcus_per_row = 0;
};

struct Marker {
  size_t begin, code;  // offsets of the first FF and of the byte that ends the marker
};

// The first marker at `at` or later, by libjpeg's rule: FF may be repeated; FF 00 and other bytes
// are skipped. Both offsets are jpeg.size if there is none.
Marker next_marker(Bytes jpeg, size_t at);

// Returns false if this parser does not understand the segments; libjpeg must then decide whether
// the file is valid. Never reads outside `jpeg`. Throws JpegError for too many segments.
bool parse_header(Bytes jpeg, Header& header);

// True if libjpeg takes the three components of the image for YCbCr.
bool is_ycbcr(Bytes jpeg, const Header& header);

// The EXIF orientation, 1 to 8; 1 if there is none or it is invalid.
int exif_orientation(Bytes jpeg, const Header& header);

}  // namespace custom_op
