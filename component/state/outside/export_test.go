package outside

// Waiting returns the number of keys that wait for a read.
func Waiting(g *Gatherer) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
