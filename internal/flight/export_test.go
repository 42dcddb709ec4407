package flight

// Failures returns the number of remembered failures.
func Failures[T any](g *Group[T]) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.failures)
}
