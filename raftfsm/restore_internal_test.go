package raftfsm

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// recording is a replica that keeps the proposed requests and answers that they are applied.
type recording struct {
	replica
	proposed []group.Encoded
}

func (r *recording) propose(_ context.Context, _ uint32, data group.Encoded, _ group.Ack, _ bool) (group.Answer,
	error) {
	r.proposed = append(r.proposed, data)
	return group.Answer{Result: kv.Result{Outcome: kv.Applied}}, nil
}

// recorded returns a restore of a backup with one group, and the replica to which it sends its steps.
func recorded() (*restore, *recording) {
	log := &recording{}
	return &restore{host: &Host{replica: log}, id: 1, parts: []uint64{0},
		in: &backup.Reader{Header: backup.Header{Partitions: 1}}}, log
}

// A backup file has up to 512 KiB of small records before a value of the maximum size in one part.
func TestRestore_SplitsPartThatIsLargerThanLogEntry(t *testing.T) {
	rec := func(key string, size int) backup.Record {
		return backup.Record{Store: "/s", Key: key, Value: make([]byte, size), ExpireAt: 1 << 62}
	}
	result := func(key string, size int) backup.Remembered {
		return backup.Remembered{Key: key, ExpireAt: 1, Result: append([]byte{1, 1, 0, 0},
			lenprefix.Append(nil, make([]byte, size))...)}
	}
	largest := rec("largest", 0)
	largest.Value = make([]byte, MaxRequest-100)
	for name, c := range map[string]struct {
		part backup.Part
		want [][]string // keys of each request
	}{
		"small": {backup.Part{Records: []backup.Record{rec("a", 9), rec("b", 9)}}, [][]string{{"a", "b"}}},
		"largest value after small ones": {
			backup.Part{Records: []backup.Record{rec("a", 200<<10), rec("b", 200<<10), largest, rec("z", 9)}},
			[][]string{{"a", "b"}, {"largest"}, {"z"}}},
		"remembered results": {
			backup.Part{Remembered: []backup.Remembered{result("a", 40<<20), result("b", 20<<20), result("c", 9<<20)}},
			[][]string{{"a", "b"}, {"c"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s, log := recorded()
			if err := s.chunk(t.Context(), &c.part); err != nil {
				t.Fatal(err)
			}
			if s.parts[0] != uint64(len(c.want)) || len(log.proposed) != len(c.want) {
				t.Fatalf("%d requests, %d counted, want %d", len(log.proposed), s.parts[0], len(c.want))
			}
			for i, data := range log.proposed {
				if err := whole(data); err != nil {
					t.Errorf("request %d of %d bytes: %v", i, len(data), err)
				}
				b, err := command.Decode(append(command.AppendHeader(nil, command.First, 0, 1), data...))
				if err != nil {
					t.Fatal(err)
				}
				r := &b.Requests[0]
				var keys []string
				for k := range r.Ops {
					keys = append(keys, r.Ops[k].Key)
				}
				for k := range r.Restore.Remembered {
					keys = append(keys, r.Restore.Remembered[k].Key)
				}
				if !slices.Equal(keys, c.want[i]) || r.Restore.Part != uint64(i) {
					t.Errorf("request %d has part %d and %s, want %s", i, r.Restore.Part, fmt.Sprint(keys),
						fmt.Sprint(c.want[i]))
				}
			}
		})
	}
}

// The state machine decodes a remembered result only at a retry of its request. If it cannot decode the result, it
// breaks.
func TestRestore_RefusesRememberedResultOfUnknownForm(t *testing.T) {
	for name, result := range map[string][]byte{
		"unknown outcome":        {9, 0, 0, 0},
		"unknown flag":           {1, 0x80, 0, 0},
		"too short":              {1},
		"more revisions counted": {1, 0, 0, 2, 1},
		"bytes after it":         {1, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, log := recorded()
			m := backup.Remembered{Key: "k", ExpireAt: 1, Result: result}
			err := s.chunk(t.Context(), &backup.Part{Remembered: []backup.Remembered{m}})
			if f, ok := fault.As(err); !ok || f.Code != fault.Corrupt || f.Hint == "" || len(log.proposed) > 0 {
				t.Errorf("restored from a file: %v, %d requests proposed", err, len(log.proposed))
			}
			r := s.newChunk(0)
			r.Kind, r.Restore.ID = command.KindRestore, 1
			r.Restore.Remembered = []command.Remembered{command.Remembered(m)}
			data, err := command.AppendRequest(nil, r)
			if err != nil {
				t.Fatal(err)
			}
			if err := whole(data); !fault.Is(err, fault.Corrupt) {
				t.Errorf("forwarded: %v", err)
			}
		})
	}
}
