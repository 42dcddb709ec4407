package main

import "fmt"

// goals are the lowest ratios of the rate of Quorate to that of etcd that are acceptable, by number of clients. They
// apply to one minimal HTTP client for both and values of 256 bytes. A ratio below its goal is marked in the table.
var goals = map[operation]map[int]float64{
	strongSave:   {1: 1.5, 64: 3, 512: 4},
	strongRead:   {64: 3.5},
	eventualRead: {64: 5},
}

// goalOf returns the goal of a table cell; 0 = none.
func goalOf(s *settings, other string, op operation, clients int) float64 {
	if other != "etcd" || !s.bare {
		return 0
	}
	return goals[op][clients]
}

// missed returns the mark of a ratio that is below its goal.
func missed(ratio, goal float64) string {
	if ratio >= goal {
		return ""
	}
	return fmt.Sprintf(", below the goal of %.1f", goal)
}
