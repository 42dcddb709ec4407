package redis

import (
	"time"

	"github.com/quorate/quorate/component/state"
)

// SlotOf exposes slotOf.
func SlotOf(name string) int { return slotOf(name) }

// Document exposes document.
func Document(text []byte) ([]byte, string) { return document(text) }

// ExpiresIn exposes Store.expiresIn.
func ExpiresIn(now time.Time, ttl state.TTL) int64 {
	return (&Store{now: func() time.Time { return now }}).expiresIn(ttl)
}
