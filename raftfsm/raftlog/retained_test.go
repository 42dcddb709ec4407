package raftlog

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRetained_ReleasesSilentFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Retained
		r.Begin("a", 10)
		r.Begin("b", 20)
		<-time.After(10 * retainWait)
		if got := r.Oldest(); got != 10 {
			t.Errorf("while two states are being sent: %d", got)
		}
		r.End("a", false)
		if got := r.Oldest(); got != 20 {
			t.Errorf("after one could not be sent: %d", got)
		}
		r.End("b", true)
		r.Reached("b", 30, 1000)
		if got := r.Oldest(); got != 30 {
			t.Errorf("while the follower catches up: %d", got)
		}
		<-time.After(retainWait + time.Second)
		if got := r.Oldest(); got != 0 {
			t.Errorf("after the follower stopped answering: %d", got)
		}
	})
}
