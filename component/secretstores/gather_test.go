package secretstores_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/internal/fault"
)

// A server with many large secrets must not use up the memory of the node.
func TestGather_LimitsAllSecretsTogether(t *testing.T) {
	value := strings.Repeat("v", 1<<20) // all secrets share it
	for count, want := range map[int]fault.Code{63: "", 200: fault.TooLarge} {
		var names []string
		for i := range count {
			names = append(names, strconv.Itoa(i))
		}
		got, err := secretstores.Gather(t.Context(), names,
			func(ctx context.Context, _ string) (map[string]string, error) {
				return map[string]string{"v": value}, ctx.Err()
			})
		if fault.CodeOf(err) != want || (err == nil) != (len(got) == count) {
			t.Errorf("%d secrets: %d, %v", count, len(got), err)
		}
	}
}
