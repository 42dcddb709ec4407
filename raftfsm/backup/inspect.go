package backup

import (
	"errors"
	"io"
	"sort"
)

// Summary describes a completely verified backup file and counts its keys and bytes.
type Summary struct {
	Header
	Totals Totals         `json:"totals"`
	Parts  []GroupSummary `json:"contents"` // by group
	Stores []StoreSummary `json:"stores"`   // in order of their names
}

// GroupSummary counts what one group holds.
type GroupSummary struct {
	ID uint32 `json:"id"`
	Totals
}

// StoreSummary counts what one store holds in all groups.
type StoreSummary struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Keys      uint64 `json:"keys"`
	Bytes     uint64 `json:"bytes"`    // total size of keys and values
	Expiring  uint64 `json:"expiring"` // keys with an expiry
}

// Inspect reads and verifies a whole backup file and returns a summary. The function split separates the id of a store
// into namespace and name.
func Inspect(r io.Reader, split func(id string) (namespace, name string)) (Summary, error) {
	b, err := NewReader(r)
	if err != nil {
		return Summary{}, err
	}
	out := Summary{Header: b.Header, Parts: []GroupSummary{}, Stores: []StoreSummary{}}
	stores := map[string]*StoreSummary{}
	for {
		p, err := b.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Summary{}, err
		}
		if p.Ends {
			out.Parts = append(out.Parts, GroupSummary{ID: p.Group, Totals: p.Totals})
			out.Totals.add(p.Totals)
		}
		count(stores, p.Records, split)
	}
	out.Totals.Bytes = b.whole.Bytes
	for _, s := range stores {
		out.Stores = append(out.Stores, *s)
	}
	sort.Slice(out.Stores, func(i, j int) bool {
		a, b := out.Stores[i], out.Stores[j]
		return a.Namespace < b.Namespace || a.Namespace == b.Namespace && a.Name < b.Name
	})
	return out, nil
}

func count(stores map[string]*StoreSummary, records []Record, split func(string) (string, string)) {
	for i := range records {
		r := &records[i]
		s := stores[r.Store]
		if s == nil {
			s = &StoreSummary{}
			s.Namespace, s.Name = split(r.Store)
			stores[r.Store] = s
		}
		s.Keys++
		s.Bytes += uint64(len(r.Key) + len(r.Value))
		if r.ExpireAt != 0 {
			s.Expiring++
		}
	}
}
