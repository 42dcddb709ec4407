package timeline_test

import (
	"bytes"
	"runtime/trace"
	"testing"

	"github.com/quorate/quorate/internal/timeline"
)

func TestMark_IsInTheTrace(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("skipped: go test -trace records a trace")
	}
	var out bytes.Buffer
	if err := trace.Start(&out); err != nil {
		t.Fatal(err)
	}
	timeline.Mark(timeline.Queued)
	timeline.MarkEntries(timeline.Encoded, 7, 12)
	trace.Stop()
	for _, want := range []string{timeline.Category, timeline.Queued, timeline.Encoded + " 7 12"} {
		if !bytes.Contains(out.Bytes(), []byte(want)) {
			t.Errorf("the trace does not contain %q", want)
		}
	}
}

func TestMark_AllocatesNothingWithoutATrace(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("skipped: go test -trace records a trace")
	}
	if n := testing.AllocsPerRun(100, func() {
		timeline.Mark(timeline.Queued)
		timeline.MarkEntries(timeline.Encoded, 7, 12)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
