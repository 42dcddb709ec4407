package peer

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestQuietLevel_UnformedIsWarnOnlyWhenItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuiet()
		for _, step := range []struct {
			after  time.Duration
			reason Reason
			want   slog.Level
		}{
			{0, ReasonUnformed, slog.LevelInfo},
			{formGrace - 1, ReasonUnformed, slog.LevelInfo},
			{0, ReasonCertificate, slog.LevelWarn},
			{1, ReasonUnformed, slog.LevelWarn},
		} {
			<-time.After(step.after)
			if got := q.level(step.reason); got != step.want {
				t.Errorf("%s after another %s: %s, want %s", step.reason, step.after, got, step.want)
			}
		}
	})
}
