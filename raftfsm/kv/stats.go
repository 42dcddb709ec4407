package kv

// Stats are sizes and counters of a machine, for metrics.
type Stats struct {
	Applied, Term    uint64
	Revision         uint64 // last revision or origin number used
	Clock            uint64 // cluster time, Unix milliseconds
	Keys             uint64 // stored keys, exact; an expired key counts until it is removed
	Origins          uint64 // registered
	ClientResults    uint64 // remembered
	Histories        int    // prefixes whose changes are kept
	HistoryBytes     uint64 // of the changes
	DiskBytes        uint64 // of all files of the database
	MemTableBytes    uint64
	CacheBytes       uint64 // of the block cache, which may be shared
	CacheHits        int64  // of the block cache since it was created
	CacheMisses      int64
	ReadAmp          int    // files and levels that a read may have to look at
	CompactionDebt   uint64 // estimated bytes that compactions have yet to move
	L0Files          int64
	L0Sublevels      int32
	Flushes          int64
	Compactions      int64
	WriteStalls      uint64 // times that Apply waited for flushes or compactions
	BackgroundErrors uint64 // failed flushes and compactions
}

// Stats returns the current sizes and counters of the machine. It returns zeros when the machine is closed or broken.
func (m *Machine) Stats() Stats {
	if m.use("kv.Stats") != nil {
		return Stats{}
	}
	defer m.gate.leave()
	s, p := m.state.Load(), m.db.Metrics()
	return Stats{
		Applied: s.applied, Term: s.term, Revision: s.revision, Clock: s.clock, Keys: s.keys,
		Origins: uint64(s.origins), ClientResults: s.clientNext - s.clientFirst, //nolint:gosec // a count
		Histories: s.histories, HistoryBytes: s.historyBytes,
		DiskBytes: p.DiskSpaceUsage(), MemTableBytes: p.MemTable.Size,
		CacheBytes: uint64(p.BlockCache.Size), //nolint:gosec // a size
		CacheHits:  p.BlockCache.Hits, CacheMisses: p.BlockCache.Misses,
		ReadAmp: p.ReadAmp(), CompactionDebt: p.Compact.EstimatedDebt,
		L0Files: p.Levels[0].TablesCount, L0Sublevels: p.Levels[0].Sublevels,
		Flushes: p.Flush.Count, Compactions: p.Compact.Count, WriteStalls: m.health.stalls.Load(),
		BackgroundErrors: m.health.total.Load(),
	}
}
