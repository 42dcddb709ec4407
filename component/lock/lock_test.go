package lock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/internal/fault"
)

func TestClaim_Check(t *testing.T) {
	long := strings.Repeat("x", lock.MaxName+1)
	for want, c := range map[string]lock.Claim{
		"": {Key: lock.Key{Resource: long[1:]}, Owner: long[1:], Expiry: lock.MaxExpiry},
		"a resource of 1025 bytes is longer than 1 KiB": {Key: lock.Key{Resource: long}},
		"an owner of 1025 bytes is longer than 1 KiB":   {Owner: long},
		"an expiry of 24h0m1s is longer than 24 hours":  {Expiry: lock.MaxExpiry + time.Second},
	} {
		err := c.Check("test")
		if want == "" && err != nil || want != "" && (!fault.Is(err, fault.TooLarge) ||
			!strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
