package outside

// Waiting returns how many keys wait.
func Waiting(g *Gatherer) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
