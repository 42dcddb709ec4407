package node

import (
	"context"
	"log/slog"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Check reads the component files of c without starting anything. What a start would
// refuse because of the files alone is the error; oddities are warnings. env looks up
// environment variables.
func Check(_ context.Context, c Config, env func(name string) (string, bool)) (warnings []string, err error) {
	o := loaderOptions(c.WithDefaults(), env, func(context.Context, loader.StateConfig) (state.Store, error) {
		return nil, fault.New(fault.Internal, "node.Check", "a check opens no store")
	})
	o.Logger = slog.New(slog.DiscardHandler)
	if o.Factories, err = builtin.Factories(o.Factories); err != nil {
		return nil, err
	}
	plan, err := loader.Read(o)
	if err != nil {
		return nil, err
	}
	for _, w := range plan.Warnings {
		warnings = append(warnings, w.String())
	}
	return warnings, unsupported(plan)
}

// documents is what a plan and a set have in common.
type documents interface {
	Documents(kind component.Kind) []component.Document
}
