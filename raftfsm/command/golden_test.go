package command_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/quorate/quorate/raftfsm/command"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// samples has one batch for every kind of request and every field.
func samples() map[string]command.Batch {
	id := command.RequestID{Origin: 7, Seq: 300, Done: 299}
	client := command.ClientID{Scope: "shop/orders||cart", ID: "4711-a"}
	set := command.Op{Kind: command.OpSet, Store: "default/orders", Key: "cart||1", Value: []byte(`{"n":1}`)}
	with := func(change func(*command.Op)) command.Op {
		o := set
		change(&o)
		return o
	}
	write := func(ops ...command.Op) command.Request {
		return command.Request{Kind: command.KindWrite, Ops: ops}
	}
	restore := func(r command.Restore, ops ...command.Op) command.Request {
		return command.Request{Kind: command.KindRestore, Restore: &r, Ops: ops}
	}
	batch := func(r ...command.Request) command.Batch {
		return command.Batch{Stamp: 1_764_000_000_123, Requests: r}
	}
	return map[string]command.Batch{
		"empty":        batch(),
		"tick":         batch(command.Request{Kind: command.KindTick}),
		"expire":       batch(command.Request{Kind: command.KindExpire, Limit: 1000}),
		"register":     batch(command.Request{Kind: command.KindRegister, Name: "node-a/boot-1"}),
		"write_none":   batch(write()),
		"write_set":    batch(write(set)),
		"write_delete": batch(write(command.Op{Kind: command.OpDelete, Store: "default/orders", Key: "cart||1"})),
		"write_revision": batch(write(with(func(o *command.Op) {
			o.Cond, o.Revision = command.CondRevision,
				1<<40+1
		}))),
		"write_absent": batch(write(with(func(o *command.Op) { o.Cond = command.CondAbsent }))),
		"write_never":  batch(write(with(func(o *command.Op) { o.Cond = command.CondNever }))),
		"write_binary": batch(write(with(func(o *command.Op) {
			o.Value, o.ContentType = []byte{0, 255, 0}, "application/octet-stream"
		}))),
		"write_ttl":       batch(write(with(func(o *command.Op) { o.TTL = 60_000 }))),
		"write_expire_at": batch(write(with(func(o *command.Op) { o.ExpireAt = 1_764_000_060_123 }))),
		"write_empty":     batch(write(with(func(o *command.Op) { o.Value = nil }))),
		"write_checked": batch(command.Request{Kind: command.KindWrite, Ops: []command.Op{
			{Kind: command.OpCheck, Cond: command.CondRevision, Revision: 7, Store: "locks", Key: "ocart||$lock||l||a"},
			set,
		}}),
		"write_append": batch(write(with(func(o *command.Op) {
			o.Kind, o.Store, o.Key, o.TTL = command.OpAppend, "topics", "orders\x00m", 60_000
		}))),
		"write_ids": batch(command.Request{
			Kind: command.KindWrite, ID: id, Client: client, Ops: []command.Op{set},
		}),
		"restore_begin":  batch(restore(command.Restore{Step: command.StepBegin, ID: 1<<63 + 1, Revision: 4711})),
		"restore_commit": batch(restore(command.Restore{Step: command.StepCommit, ID: 9, Part: 2})),
		"restore_abort":  batch(restore(command.Restore{Step: command.StepAbort, ID: 9})),
		"restore_chunk": batch(restore(command.Restore{
			Step: command.StepChunk, ID: 9, Part: 1,
			Remembered: []command.Remembered{{Key: "app\x00id", ExpireAt: 5, Fingerprint: 1 << 60,
				Result: []byte{1, 0}}},
		}, set, with(func(o *command.Op) { o.Key, o.ExpireAt, o.ContentType = "cart||2", 7, "text/plain" }))),
		"format": batch(command.Request{Kind: command.KindFormat, Limit: 2}),
		"watch": batch(command.Request{Kind: command.KindWatch, ID: id, Watch: &command.Watch{Store: "default/orders",
			Prefix: "cart", Age: 600_000, Bytes: 64 << 20}}),
		"several": batch(
			write(set, with(func(o *command.Op) { o.Key = "cart||2" }),
				with(func(o *command.Op) { o.Store = "default/other" })),
			command.Request{Kind: command.KindWrite, ID: id, Ops: []command.Op{set}},
			command.Request{Kind: command.KindTick},
		),
	}
}

func TestEncoding_MatchesGoldenBytes(t *testing.T) {
	for name, b := range samples() {
		t.Run(name, func(t *testing.T) {
			got, err := command.Append(nil, &b)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				writeGolden(t, path, got)
			}
			want := readGolden(t, path)
			if !bytes.Equal(got, want) {
				t.Errorf("Append wrote\n%x, the golden file has\n%x", got, want)
			}
			decoded, err := command.DecodeUpTo(255, want)
			if err != nil {
				t.Fatalf("Decode of the golden file: %v", err)
			}
			if d := cmp.Diff(b, decoded, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("Decode of the golden file (-want +got):\n%s", d)
			}
		})
	}
}

// These numbers are in logs on disk: a change of any of them needs a new version.
func TestFormat_NumbersDoNotChange(t *testing.T) {
	type numbers map[string]int
	got := numbers{
		"Version": command.Version, "HeaderSize": command.HeaderSize, "ClientResultLife": command.ClientResultLife,
		"KindWrite": int(command.KindWrite), "KindRegister": int(command.KindRegister),
		"KindExpire": int(command.KindExpire), "KindTick": int(command.KindTick),
		"KindRestore": int(command.KindRestore), "KindFormat": int(command.KindFormat),
		"KindWatch": int(command.KindWatch), "WatchLife": command.WatchLife,
		"OpCheck": int(command.OpCheck), "OpAppend": int(command.OpAppend),
		"StepBegin": int(command.StepBegin), "StepChunk": int(command.StepChunk), "StepCommit": int(command.StepCommit),
		"StepAbort": int(command.StepAbort),
		"OpSet":     int(command.OpSet), "OpDelete": int(command.OpDelete),
		"CondNone": int(command.CondNone), "CondRevision": int(command.CondRevision),
		"CondAbsent": int(command.CondAbsent), "CondNever": int(command.CondNever),
	}
	want := numbers{
		"Version": 1, "WatchLife": 1_800_000, "HeaderSize": 14, "ClientResultLife": 600_000,
		"KindWrite": 1, "KindRegister": 2, "KindExpire": 3, "KindTick": 4, "KindRestore": 5, "KindFormat": 6,
		"KindWatch": 7, "OpCheck": 3, "OpAppend": 4,
		"StepBegin": 1, "StepChunk": 2, "StepCommit": 3, "StepAbort": 4,
		"OpSet": 1, "OpDelete": 2,
		"CondNone": 0, "CondRevision": 1, "CondAbsent": 2, "CondNever": 3,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// writeGolden writes goldens as lines of 32 hexadecimal digits, so that diffs are readable.
func writeGolden(t *testing.T, path string, data []byte) {
	t.Helper()
	var text strings.Builder
	for len(data) > 0 {
		n := min(len(data), 16)
		text.WriteString(hex.EncodeToString(data[:n]) + "\n")
		data = data[n:]
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readGolden(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
