package group

// Retire ends this server's part in the group for good: it follows nobody, votes for
// nobody and stands for no election. Files stay open until Close, so that status can be
// told. Idempotent.
func (g *Group) Retire() error { return g.raft.Shutdown().Error() }

// Committed is the newest log index that this server knows to be committed.
func (g *Group) Committed() uint64 { return g.raft.CommitIndex() }
