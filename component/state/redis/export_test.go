package redis

// SlotOf exposes slotOf.
func SlotOf(name string) int { return slotOf(name) }

// Document exposes document.
func Document(text []byte) ([]byte, string) { return document(text) }
