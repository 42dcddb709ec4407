package kv_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

func TestFullDisk_LosesNothingAndRecovers(t *testing.T) {
	disk := &faultyDisk{file: ".sst"}
	fs := vfs.NewCrashableMem()
	o := options(t, errorfs.Wrap(fs, disk))
	waits := make(chan int, 1)
	release := make(chan struct{})
	o.Backoff = func(failures int) {
		select {
		case waits <- failures:
			<-release
		default:
		}
	}
	m, err := kv.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, Machine: m}
	r.do(1, write(set("k", "1")))
	disk.on.Store(true)
	_, err = r.Flush()
	wantFault(t, "Flush", err, fault.Unavailable)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Flush: %v, want the cause in it", err)
	}
	if n := <-waits; n < 1 {
		t.Errorf("Backoff was given %d failures", n)
	}
	r.do(2, write(set("l", "1"))) // memory has room, so Apply succeeds
	r.wantValue("k", "1")
	left := reopen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	if left.Applied() != 0 {
		t.Errorf("a crash on the full disk left entry %d, want what was stored before", left.Applied())
	}
	disk.on.Store(false)
	close(release)
	flush(t, r.Machine)
	if s := r.Stats(); s.BackgroundErrors == 0 {
		t.Error("the failures were not counted")
	}
	if n := kv.FailuresInARow(r.Machine); n != 0 {
		t.Errorf("storage works again, but %d failures still count", n)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, fs)
	again.wantValue("k", "1")
	again.wantValue("l", "1")
	again.check()
}

func TestMachine_StopsWhenStorageKeepsFailing(t *testing.T) {
	disk := &faultyDisk{file: ".sst"}
	r := rigOn(t, errorfs.Wrap(vfs.NewMem(), disk))
	r.do(1, write(set("k", "1")))
	disk.on.Store(true)
	_, err := r.Flush()
	wantFault(t, "Flush", err, fault.Unavailable)
	told := <-r.fatal.ch
	wantFault(t, "Fatal", told, fault.Unavailable)
	_, err = r.Get("s", "k", 0)
	wantFault(t, "Get", err, fault.Unavailable)
	if err := r.Close(); err == nil {
		t.Error("Close of a machine whose engine gave up has no error")
	}
	if n := disk.hits.Load(); n < kv.MaxFailures {
		t.Errorf("the machine stopped after %d failures, want %d", n, kv.MaxFailures)
	}
	disk.on.Store(false) // lets Pebble end its work
}

func TestManifestFailure_StopsMachineAndKeepsStoredData(t *testing.T) {
	disk := &faultyDisk{file: "MANIFEST"}
	fs := vfs.NewCrashableMem()
	r := rigOn(t, errorfs.Wrap(fs, disk))
	r.do(1, write(set("k", "1")))
	flush(t, r.Machine)
	r.do(2, write(set("k", "2")))
	disk.on.Store(true)
	if _, err := r.Flush(); err == nil {
		t.Error("Flush succeeded without a manifest")
	}
	told := <-r.fatal.ch
	if f, ok := fault.As(told); !ok || f.Hint == "" || !strings.Contains(f.Error(), "MANIFEST") {
		t.Errorf("Fatal got %v, want the file and a hint", told)
	}
	if err := r.Close(); err == nil {
		t.Error("Close of a machine whose engine gave up has no error")
	}
	out := r.Apply([]kv.Entry{entryOf(t, 3, 3, tick())})
	if out[0].Err == nil {
		t.Error("Apply went on")
	}
	left := reopen(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(1, 1))}))
	if at := left.Applied(); at != 1 && at != 2 {
		t.Errorf("applied %d after the failure, want 1 or 2", at)
	}
	left.do(2, write(set("k", "3")))
	left.wantValue("k", "3")
	left.check()
}

func TestCreate_OnFullDiskReturnsError(t *testing.T) {
	for _, file := range []string{"MANIFEST", ".sst"} {
		disk := &faultyDisk{file: file}
		disk.on.Store(true)
		o := options(t, errorfs.Wrap(vfs.NewMem(), disk))
		o.Logger = nil
		o.Fatal = func(err error) {} // the flush of the first record may fail in the background
		m, err := kv.Create(o)
		if err == nil || m != nil {
			t.Errorf("%s cannot be written: %v, %v, want an error alone", file, m, err)
		}
		disk.on.Store(false)
	}
}

func TestPebbleFatal_BlocksItsGoroutine(t *testing.T) {
	r := newRig(t)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		kv.PebbleFatal(r.Machine, "simulated failure")
	}()
	told := <-r.fatal.ch
	if !strings.Contains(told.Error(), "simulated failure") {
		t.Errorf("Fatal got %v", told)
	}
	if _, err := r.Get("s", "k", 0); err == nil {
		t.Error("Get went on")
	}
	select {
	case <-returned:
		t.Error("Fatalf returned")
	default:
	}
}

func TestStats_MatchMachine(t *testing.T) {
	r := newRig(t)
	r.register(5, "n")
	r.do(7, write(set("a", "1"), set("b", "1")), withClient(write(del("a")), "id"))
	flush(t, r.Machine)
	got := r.Stats()
	want := kv.Stats{Applied: 2, Term: 1, Revision: 3, Clock: 7, Keys: 1, Origins: 1, ClientResults: 1}
	have := kv.Stats{
		Applied: got.Applied, Term: got.Term, Revision: got.Revision, Clock: got.Clock,
		Keys: got.Keys, Origins: got.Origins, ClientResults: got.ClientResults,
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
	if got.DiskBytes == 0 || got.MemTableBytes == 0 || got.Flushes == 0 || got.L0Files+int64(got.Compactions) == 0 {
		t.Errorf("the engine's figures are missing: %+v", got)
	}
}

func TestApply_EntryLargerThanMemTable(t *testing.T) {
	fs := vfs.NewMem()
	o := options(t, fs)
	o.MemTable = 256 << 10
	m, err := kv.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, Machine: m}
	value := strings.Repeat("x", 300<<10)
	var entries []kv.Entry
	for i := range uint64(8) {
		entries = append(entries, entryOf(t, i+1, 1,
			write(command.Op{Kind: command.OpSet, Store: "s", Key: fmt.Sprint("k", i), Value: []byte(value)})))
	}
	for _, out := range r.Apply(entries) {
		if out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	flush(t, m)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	again := reopen(t, fs)
	again.wantValue("k0", value)
	again.wantValue("k7", value)
	again.check()
}
