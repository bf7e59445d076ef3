-- Moves tasks that were changed in the future back by as much as the clock was ahead then.
local now = tonumber(argument())
call('DEL', prefix .. ':served')
local count = 0
for _, state in ipairs({'ready', 'leased'}) do
  for _, id in ipairs(call('ZRANGE', prefix .. ':tasks:' .. state, 0, -1)) do
    local name = task_key(id)
    local task = call('HMGET', name, 'lane', 'due_at', 'again_at', 'created_at', 'changed_at')
    local changed_at = tonumber(task[5] or '0')
    if changed_at > now then
      local due_at = string.format('%.0f', tonumber(task[2]) - (changed_at - now))
      call('HSET', name, 'due_at', due_at, 'changed_at', string.format('%.0f', now), 'created_at',
        string.format('%.0f', math.min(tonumber(task[4]), now)))
      if task[3] then
        call('HSET', name, 'again_at', string.format('%.0f', tonumber(task[3]) - (changed_at - now)))
      end
      place(id, task[1], state, state, due_at)
      count = count + 1
    end
  end
end
-- A lane that was served in the future waits for nothing any more.
for _, lane in ipairs(call('ZRANGE', prefix .. ':lanes', 0, -1)) do touched_lanes[lane] = true end
finish_lanes(now)
return count
