package ratelimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/component"
)

func open(t *testing.T, perSecond string, now *time.Time) *Limiter {
	t.Helper()
	v, _, err := component.Metadata{{Name: metadataRate, Value: perSecond}}.Check(component.Pos{}, "l", Fields())
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(v, func() time.Time { return *now })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLimiter_NumberOfBucketsIsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	l := open(t, "1e-9", &now)
	for i := range 3 * maxClients {
		now = now.Add(time.Millisecond)
		l.allow(fmt.Sprint(i))
	}
	if len(l.clients) > maxClients || l.order.Len() != len(l.clients) {
		t.Errorf("%d buckets, %d in order", len(l.clients), l.order.Len())
	}
	if l.allow(fmt.Sprint(3*maxClients - 1)) {
		t.Error("the newest address was forgotten")
	}
}

func TestLimiter_ForgetsFullBuckets(t *testing.T) {
	now := time.Unix(1000, 0)
	l := open(t, "2.5", &now)
	for i := range 100 {
		l.allow(fmt.Sprint(i))
	}
	now = now.Add(l.refill + 1)
	if l.allow("x"); len(l.clients) != 1 {
		t.Errorf("%d buckets are left", len(l.clients))
	}
}
