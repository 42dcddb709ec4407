package logadapt_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/logadapt"
)

func TestRecent_KeepsTheLastRecordsOfTheLevel(t *testing.T) {
	var out bytes.Buffer
	recent := logadapt.NewRecent(slog.LevelWarn, 2)
	log := slog.New(recent.Handler(slog.NewTextHandler(&out, nil))).With("group", 0).WithGroup("disk")
	log.Info("an info")
	log.Warn("one", "free", 1)
	log.Warn("two", "free", 2)
	log.Error("three", "text", strings.Repeat("é", 2000))
	got := recent.Records()
	if len(got) != 2 || !strings.HasPrefix(got[0].Text, "three group=0 disk.text=é") || len(got[0].Text) > 1100 ||
		got[1].Text != "two group=0 disk.free=2" || got[0].Level != slog.LevelError {
		t.Errorf("kept %+v", got)
	}
	for _, want := range []string{"an info", "disk.free=1", "three"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %q", want)
		}
	}
}
