package redis

import (
	"context"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// slotOf returns the slot of a key in a Redis Cluster: the CRC-16/XMODEM of the key modulo 16384. If the key has a
// hash tag, only the hash tag counts.
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

// redirected returns the address in a MOVED or ASK reply of a Redis Cluster, or "" for any other error. ask is true for
// an ASK reply, which redirects only the current command.
func redirected(err error) (address string, ask bool) {
	if err == nil {
		return "", false
	}
	words := strings.Fields(err.Error())
	if len(words) != 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return "", false
	}
	return words[2], words[0] == "ASK"
}

// masterAt returns the client of the master that has the given address, or nil if there is none.
func masterAt(ctx context.Context, c *goredis.ClusterClient, address string) (found *goredis.Client) {
	var mu sync.Mutex
	_ = c.ForEachMaster(ctx, func(_ context.Context, node *goredis.Client) error {
		if node.Options().Addr == address {
			mu.Lock()
			defer mu.Unlock()
			found = node
		}
		return nil
	})
	return found
}
