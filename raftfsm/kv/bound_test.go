package kv_test

import (
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

func TestGetManyWithin_Bound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do(1, write(set("a", "12345")), write(set("b", "12345")))
	if v, err := r.GetManyWithin("s", []string{"a", "b"}, 0, 10); err != nil || len(v) != 2 {
		t.Errorf("%v %v", v, err)
	}
	if _, err := r.GetManyWithin("s", []string{"a", "b", "a"}, 0, 10); !fault.Is(err, fault.TooLarge) {
		t.Errorf("got %v", err)
	}
}

func TestGetWithin_Bound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.do(1, write(set("a", "12345")))
	for _, row := range []struct {
		key   string
		bound int64
		want  string
		size  int
	}{{"a", 0, "12345", 0}, {"a", 5, "12345", 0}, {"a", 4, "", 5}, {"absent", 4, "", 0}} {
		v, err := r.GetWithin("s", row.key, 0, row.bound)
		if err != nil || string(v.Value) != row.want || v.Size != row.size || v.Found != (row.key == "a") ||
			v.Found != (v.Revision > 0) {
			t.Errorf("%s within %d: %+v %v", row.key, row.bound, v, err)
		}
	}
}
