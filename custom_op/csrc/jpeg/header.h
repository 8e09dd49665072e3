// Reads a JPEG's markers up to the first scan, by bytes alone.
#pragma once

#include <array>
#include <vector>

#include "types.h"

namespace custom_op {

struct Segment {
  uint8_t marker;
  size_t begin;  // of the FF
  size_t end;    // one past the payload
};

struct Component {
  int horizontal, vertical;  // sampling factors
};

struct Header {
  std::vector<Segment> segments;  // all markers after SOI up to and with the first SOS
  uint8_t frame_marker = 0;       // 0xC0 ... 0xCF
  int precision = 0;
  int64_t height = 0, width = 0;
  int component_count = 0;
  std::array<Component, 4> components{};
  int64_t restart_interval = 0;  // in MCUs, 0 for none
  size_t frame = 0;              // offset of the frame marker
  size_t scan_data = 0;          // offset of the first entropy-coded byte
  bool baseline = false;         // Huffman-coded, 8 bits, all components in one sequential scan

  // Set when baseline. A single component counts as unsampled, as the standard says.
  int64_t mcu_height = 0, mcu_width = 0;
  int64_t mcu_rows = 0, mcus_per_row = 0;
};

// False when the bytes do not read as marker segments in an order that this parser knows: such
// files are libjpeg's to judge. Never reads outside `jpeg`.
bool parse_header(Bytes jpeg, Header& header);

// The EXIF orientation, 1 ... 8; 1 when there is none that can be understood.
int exif_orientation(Bytes jpeg, const Header& header);

}  // namespace custom_op
