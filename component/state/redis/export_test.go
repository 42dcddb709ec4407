package redis

// SlotOf exposes slotOf.
func SlotOf(name string) int { return slotOf(name) }
