package command

import "encoding/binary"

// Step is one step of a restore. Numbers are part of the format.
type Step uint8

// The steps of a restore: begin, any number of chunks, and commit or abort. Readers see the restored data only after
// the commit.
const (
	StepBegin  Step = 1
	StepChunk  Step = 2
	StepCommit Step = 3 // replace all data with the data of the chunks
	StepAbort  Step = 4 // drop the staged data
)

// Restore is one step of a restore, which replaces all data of a group with a backup. A caller may repeat a step. The
// outcome of the repeated step depends on the state of the restore:
//
//   - While the restore is running, a repeated step changes no data, and its outcome is Applied again.
//   - After the commit, a repeated StepCommit is Applied until another restore is committed. Every other step is Stale
//     (see kv.Stale).
//   - After an abort, StepBegin begins the restore again. Every other step is Stale.
type Restore struct {
	Step     Step
	ID       uint64 // identifies the whole restore; random, not 0
	Part     uint64 // StepChunk: number of the chunk, from 0; StepCommit: number of chunks
	Revision uint64 // StepBegin: the revision counter of the backup

	Remembered []Remembered // StepChunk: results of requests with a ClientID, oldest first
}

// Remembered is the stored result of a request with a ClientID, copied from a backup. Key and Result have the
// encoding of package kv.
type Remembered struct {
	Key         string
	ExpireAt    uint64 // cluster time, Unix milliseconds
	Fingerprint uint64 // hash of the operations of the request
	Result      []byte
}

// minRemembered is the minimum size in bytes of one remembered result.
const minRemembered = 1 + 1 + 1 + 1 + 1

// IsRestore reports whether a request, in the encoding of AppendRequest, is of KindRestore. Such a request must be the
// only one in its batch.
func IsRestore(encoded []byte) bool {
	_, n := binary.Uvarint(encoded)
	return n > 0 && n < len(encoded) && Kind(encoded[n]) == KindRestore
}

func (r *Request) restoreProblem() string {
	s := r.Restore
	switch {
	case s.Step < StepBegin || s.Step > StepAbort:
		return "unknown step of a restore"
	case s.ID == 0:
		return "a restore without an id"
	case r.ID != RequestID{} || r.Client != ClientID{} || r.Name != "" || r.Limit != 0:
		return "a step of a restore carries nothing of other requests"
	case s.Step != StepChunk && (len(r.Ops) > 0 || len(s.Remembered) > 0):
		return "only a chunk carries data"
	case s.Step != StepBegin && s.Revision != 0:
		return "only the begin of a restore carries a revision"
	case s.Part != 0 && s.Step != StepChunk && s.Step != StepCommit:
		return "only chunks are numbered"
	}
	for i := range r.Ops {
		if o := &r.Ops[i]; o.Kind != OpSet || o.Cond != CondNone || o.TTL != 0 {
			return "a restore carries records, and nothing that has to be decided"
		}
	}
	for i := range s.Remembered {
		if m := &s.Remembered[i]; m.Key == "" || m.ExpireAt == 0 || len(m.Result) == 0 {
			return "a remembered result lacks its key, its expiry or itself"
		}
	}
	return ""
}

func appendRestore(dst []byte, r *Request) []byte {
	s := r.Restore
	dst = append(dst, byte(s.Step))
	for _, n := range [...]uint64{s.ID, s.Part, s.Revision} {
		dst = binary.AppendUvarint(dst, n)
	}
	if s.Step != StepChunk {
		return dst
	}
	dst = appendOps(dst, r.Ops)
	dst = binary.AppendUvarint(dst, uint64(len(s.Remembered)))
	for i := range s.Remembered {
		m := &s.Remembered[i]
		dst = appendText(dst, m.Key)
		dst = binary.AppendUvarint(dst, m.ExpireAt)
		dst = binary.AppendUvarint(dst, m.Fingerprint)
		dst = appendText(dst, m.Result)
	}
	return dst
}

func restoreSize(r *Request) int {
	s := r.Restore
	n := 1 + uvarintSize(s.ID) + uvarintSize(s.Part) + uvarintSize(s.Revision)
	if s.Step != StepChunk {
		return n
	}
	n += opsSize(r.Ops) + uvarintSize(uint64(len(s.Remembered)))
	for i := range s.Remembered {
		m := &s.Remembered[i]
		n += textSize(len(m.Key)) + uvarintSize(m.ExpireAt) + uvarintSize(m.Fingerprint) + textSize(len(m.Result))
	}
	return n
}

func (c *cursor) restore(r *Request, ops *arena) {
	s := &Restore{Step: Step(c.byte()), ID: c.uvarint(), Part: c.uvarint(), Revision: c.uvarint()}
	r.Restore = s
	if s.Step != StepChunk || c.err != nil {
		return
	}
	c.ops(r, ops)
	count := c.fits(c.uvarint(), minRemembered, "too many remembered results")
	for range count {
		m := Remembered{Key: c.text(), ExpireAt: c.uvarint(), Fingerprint: c.uvarint(), Result: c.bytes()}
		if c.err != nil {
			return
		}
		s.Remembered = append(s.Remembered, m)
	}
}
