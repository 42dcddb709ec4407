package due

// Idle reports whether the Keeper does nothing, except for the given number of ticks that are under way.
func (k *Keeper) Idle(underWay int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.updates.Idle() && len(k.flights) == underWay && len(k.returned) == 0
}

// Buffered returns how many index records the Keeper has in memory. It must be idle.
func (k *Keeper) Buffered() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range k.queues {
		n += len(q.buf)
	}
	return n
}

// Timers reports whether the Keeper has a timer.
func (k *Keeper) Timers() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopTimer != nil
}

// MaxBuffer bounds the index records of one home in memory.
const MaxBuffer = maxBuffer

// StateOps is the function stateOps, for tests.
var StateOps = stateOps

// IndexKey returns the key of an index record.
func IndexKey(h Home, at uint64, name string) string { return h.indexKey(at, name) }
