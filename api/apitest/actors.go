package apitest

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
)

// ActorsElsewhere returns the actor service of app for actors on another node. Every call of an actor gets its answer
// from the given function.
func ActorsElsewhere(app api.App, answer func(ctx context.Context) (actors.Answer, error)) *actors.Service {
	e := elsewhere{answer: answer}
	return actors.NewService(app, actors.NewRuntime(actors.Options{Directories: e, Carrier: e,
		Node: func() string { return "this" }, PlaceTime: time.Minute, Reminders: noActors{}, Plan: noPlan,
		Metrics: actors.NewMetrics(prometheus.NewRegistry())}))
}

// elsewhere is the other node, and the directory of its actors.
type elsewhere struct {
	actors.Directory
	answer func(ctx context.Context) (actors.Answer, error)
}

// Claim implements actors.Directories.
func (e elsewhere) Claim(context.Context, string, string) (actors.Directory, error) { return e, nil }

// Find implements actors.Directories.
func (e elsewhere) Find(context.Context, string, string) (api.App, actors.Directory, error) {
	return api.App{ID: "host"}, e, nil
}

// Locate implements actors.Directory.
func (e elsewhere) Locate(context.Context, string, string) (actors.Owner, error) {
	return actors.Owner{Session: "session", Node: "other", Server: "other"}, nil
}

// Carry implements actors.Carrier.
func (e elsewhere) Carry(ctx context.Context, _ actors.Owner, _ api.App, _ *actors.Call) (actors.Answer, error) {
	return e.answer(ctx)
}
