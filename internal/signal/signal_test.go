package signal_test

import (
	"testing"

	"github.com/quorate/quorate/internal/signal"
)

func TestSignal_WakesThoseThatWaitedBefore(t *testing.T) {
	s := signal.New()
	first, second := s.Wait(), s.Wait()
	select {
	case <-first:
		t.Fatal("woken before the signal was fired")
	default:
	}
	s.Fire()
	<-first
	<-second
	select {
	case <-s.Wait():
		t.Fatal("woken by a signal that was fired before")
	default:
	}
}
