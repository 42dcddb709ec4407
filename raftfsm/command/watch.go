package command

import (
	"encoding/binary"
	"strings"
)

// Watch is the content of a KindWatch request. The request starts a history of the changes of all keys with one prefix
// in a store (see kv.Machine.Changes). If the history already exists, the request keeps it for another WatchLife.
type Watch struct {
	Store  string
	Prefix string // the part of stored keys before the first "||"; may be empty
	Age    uint64 // milliseconds of cluster time for which changes are kept
	Bytes  uint64 // maximum size of the changes that are kept
}

// WatchLife is how long a history is kept after the last KindWatch for its prefix, in milliseconds of cluster time. It
// is part of the format: every replica must use the same value.
const WatchLife = 30 * 60 * 1000

func (r *Request) watchProblem() string {
	w := r.Watch
	switch {
	case r.Client != ClientID{} || r.Name != "" || r.Limit != 0 || r.Restore != nil || len(r.Ops) > 0:
		return "the switching on of a history carries nothing of other requests"
	case w.Store == "" || strings.IndexByte(w.Store, 0) >= 0:
		return "a history without a store, or with a NUL in its name"
	case strings.Contains(w.Prefix, "||"):
		return "the prefix of a history ends before the first separator"
	case w.Age == 0 || w.Bytes == 0:
		return "a history without bounds"
	case !r.ID.valid():
		return "request id: sequence numbers count from 1, and done stays below them"
	}
	return ""
}

func appendWatch(dst []byte, w *Watch) []byte {
	dst = appendText(appendText(dst, w.Store), w.Prefix)
	return binary.AppendUvarint(binary.AppendUvarint(dst, w.Age), w.Bytes)
}

func watchSize(w *Watch) int {
	return textSize(len(w.Store)) + textSize(len(w.Prefix)) + uvarintSize(w.Age) + uvarintSize(w.Bytes)
}

func (c *cursor) watch(r *Request) {
	r.Watch = &Watch{Store: c.text(), Prefix: c.text(), Age: c.uvarint(), Bytes: c.uvarint()}
}
