package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// memory is a store with values in memory. spoil is appended to the values that it returns.
type memory struct {
	mu     sync.Mutex
	values map[string]string
	spoil  string
}

func (m *memory) name() string  { return "memory" }
func (m *memory) about() string { return "a map" }
func (m *memory) end()          {}

func (m *memory) cpu() (time.Duration, bool) { return 0, false }

func (m *memory) clients(n int) ([]client, error) {
	out := make([]client, n)
	for i := range out {
		out[i] = m
	}
	return out, nil
}

func (m *memory) save(_ context.Context, key, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = value
	return nil
}

func (m *memory) lock(context.Context, string) error { return nil }

func (m *memory) read(_ context.Context, key string, _ bool) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[key] + m.spoil, nil
}

func TestTable_PrintsARowPerOperationAndClients(t *testing.T) {
	var out strings.Builder
	stores := []store{&memory{values: map[string]string{}}, &memory{values: map[string]string{}}}
	s := &settings{turn: time.Millisecond, rounds: 2, keys: 3, clients: []int{1, 4}}
	of := tables()[0]
	if err := of.printCells(t.Context(), s, &out, stores, 16); err != nil {
		t.Fatal(err)
	}
	for _, op := range of.operations {
		if got := strings.Count(out.String(), "| "+string(op)+" |"); got != 2 {
			t.Errorf("%s has %d rows in\n%s", op, got, &out)
		}
	}
	if got := stores[0].(*memory).values; len(got) != 3 || len(got["k0"]) != 16 {
		t.Errorf("%v", got)
	}
}

func TestLoad_StopsAtAWrongValue(t *testing.T) {
	m := &memory{values: map[string]string{"k0": "v"}, spoil: "!"}
	err := load(t.Context(), &figures{}, m, eventualRead, 2, 1, "v", time.Minute)
	var wrong *wrongValueError
	if !errors.As(err, &wrong) || wrong.key != "k0" {
		t.Errorf("%v", err)
	}
}

func TestQuantile_IsWithinFivePercent(t *testing.T) {
	var f figures
	for i := range 1000 {
		f.add(time.Duration(i+1) * 100 * time.Microsecond)
	}
	for part, want := range map[float64]time.Duration{0.5: 50 * time.Millisecond, 0.99: 99 * time.Millisecond} {
		if got := f.quantile(part); got < want*95/100 || got > want*106/100 {
			t.Errorf("%v: %v, want about %v", part, got, want)
		}
	}
}

func TestParse_RefusesBadSettings(t *testing.T) {
	for _, args := range [][]string{{"-clients", "1,x"}, {"-instances", "0"}, {"-sizes", "0"}, {"-rounds", "0"},
		{"-kills", "0"},
		{"-turn", "0s"},
		{"-unknown"}, {"-tables", "cluster,nosuch"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestFind_NamesAMissingProgram(t *testing.T) {
	_, err := openRedis(t.Context(), &settings{redis: "no-such-redis"}, t.TempDir())
	var missing *missingError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), `"no-such-redis"`) ||
		!strings.Contains(err.Error(), "-redis") {
		t.Errorf("%v", err)
	}
}

func TestFigures_CompareCPUPerRequest(t *testing.T) {
	f := figures{count: 1000, elapsed: time.Second, cpu: 100 * time.Millisecond}
	other := figures{count: 500, elapsed: time.Second, cpu: 200 * time.Millisecond}
	if got, want := f.beside(&other), "**2.0**, 4.0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := f.beside(&figures{count: 500, elapsed: time.Second}), "**2.0**"; got != want {
		t.Errorf("%s with an unknown CPU time of the other, want %s", got, want)
	}
}

func TestFigures_NameTheSpreadOfTurns(t *testing.T) {
	f := figures{count: 300, elapsed: time.Second, turns: []float64{95, 200}}
	other := figures{count: 200, elapsed: time.Second, turns: []float64{100, 100}}
	if got, want := f.beside(&other), "**1.5** (0.95 to 2.0)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Even on a slow machine, each client makes at least one call in a turn.
func TestLoad_CallsOnceWithEachClient(t *testing.T) {
	var f figures
	if err := load(t.Context(), &f, &memory{values: map[string]string{"k0": "v"}}, eventualRead, 7, 1, "v",
		0); err != nil || f.count != 7 {
		t.Errorf("%d calls, %v", f.count, err)
	}
}

func TestParse_NamesAllTables(t *testing.T) {
	s, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var help strings.Builder
	_, _ = parse([]string{"-h"}, &help)
	_, wrong := parse([]string{"-tables", "x"}, io.Discard)
	for _, table := range tables() {
		if !slices.Contains(s.tables, table.name) || !strings.Contains(help.String(), table.name+" ") ||
			!strings.Contains(wrong.Error(), table.name) {
			t.Errorf("%s is missing in %q, in the help, or in %v", table.name, s.tables, wrong)
		}
	}
}

func TestLoad_CountsEveryTurn(t *testing.T) {
	m := &memory{values: map[string]string{"k0": "v"}}
	var f figures
	for range 2 {
		if err := load(t.Context(), &f, m, eventualRead, 2, 1, "v", 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.turns) != 2 || f.turns[0] <= 0 || f.turns[1] <= 0 {
		t.Errorf("turns: %v", f.turns)
	}
}

func TestGoals_MarkARatioBelow(t *testing.T) {
	bare := &settings{bare: true}
	for _, c := range []struct {
		settings *settings
		table    string
		other    string
		op       operation
		clients  int
		ratio    float64
		want     string
	}{
		{bare, clusterTable, "etcd", strongSave, 64, 2.9, ", below the goal of 3"},
		{bare, clusterTable, "etcd", strongSave, 64, 3, ""},
		{bare, clusterTable, "etcd", strongRead, 1, 0.1, ""},
		{bare, clusterTable, "redis", strongSave, 64, 0.1, ""},
		{&settings{}, clusterTable, "etcd", strongSave, 64, 0.1, ""},
		{&settings{}, callTable, "nginx", call, 64, 0.6, ", below the goal of 0.7"},
		{&settings{}, hopsTable, "nginx", call, 64, 0.6, ""},
	} {
		if got := missed(c.ratio, goalOf(c.settings, c.table, c.other, c.op, c.clients)); got != c.want {
			t.Errorf("%s beside %s with %d clients, ratio %.1f: %q, want %q", c.op, c.other, c.clients, c.ratio, got,
				c.want)
		}
	}
}

func TestGoals_MarkAValueAbove(t *testing.T) {
	for got, want := range map[string]string{
		exceeded(61*time.Microsecond, costGoals[nodeTable][strongSave][64]): ", above the goal of 60µs",
		exceeded(megabytes(41), memoryGoal):                                 ", above the goal of 40.0 MB",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	quorate, other := figures{count: 1, cpu: 100 * time.Millisecond}, figures{count: 1, cpu: 89 * time.Millisecond}
	goal := cpuGoals[nodeTable+"/handler"][eventualRead][64]
	if got, want := missedCost(&quorate, &other, goal), ", CPU below the goal of 0.9"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	other.cpu += time.Millisecond
	if got := missedCost(&quorate, &other, goal); got != "" {
		t.Errorf("a ratio at its goal is marked: %q", got)
	}
	if got := missedCost(&quorate, &figures{count: 1}, goal); got != "" {
		t.Errorf("a ratio to an unknown CPU time is marked: %q", got)
	}
	if exceeded(time.Hour, costGoals[callTable][call][64]) != "" || exceeded(megabytes(40), memoryGoal) != "" {
		t.Error("a value without a goal, or at its goal, is marked")
	}
}

func TestResident_ReadsThisProcessOnLinux(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("/proc exists on Linux only")
	}
	if got, ok := resident(os.Getpid()); !ok || got < 1 || got > 10_000 {
		t.Errorf("%v, %t", got, ok)
	}
}

func TestCPU_ReadsAProcessOnLinux(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("/proc exists on Linux only")
	}
	p := &processes{dir: t.TempDir()}
	defer p.end()
	if err := p.start("spins", "/bin/sh", "-c", "while :; do :; done"); err != nil {
		t.Fatal(err)
	}
	if err := until(t.Context(), func() error {
		if spent, ok := p.cpu(); !ok || spent < 20*time.Millisecond {
			return fmt.Errorf("%s, %t", spent, ok)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
