package redis

import (
	"time"

	"github.com/quorate/quorate/component/state"
)

// SlotOf calls slotOf.
func SlotOf(name string) int { return slotOf(name) }

// Document calls document.
func Document(text []byte) ([]byte, string) { return document(text) }

// ExpiresIn calls Store.expiresIn at the time now.
func ExpiresIn(now time.Time, ttl state.TTL) int64 {
	return (&Store{now: func() time.Time { return now }}).expiresIn(ttl)
}
