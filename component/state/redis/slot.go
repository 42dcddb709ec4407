package redis

import "strings"

// slotOf returns the slot of a key in a Redis Cluster: the CRC-16/XMODEM of the key modulo 16384. If the key has a
// hash tag, only the hash tag is used.
func slotOf(name string) int {
	const slots, polynomial = 16384, 0x1021
	if _, rest, ok := strings.Cut(name, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			name = tag
		}
	}
	crc := uint16(0)
	for _, b := range []byte(name) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ polynomial
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}
