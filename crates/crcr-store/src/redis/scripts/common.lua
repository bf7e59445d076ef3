-- Shared by all scripts. KEYS[1] is the prefix of every key, with the hash tag.
--
-- A script is atomic, but an error in the middle of it doesn't undo what it has written. So each one
-- makes all checks first, and its first write is one that a full or read-only server refuses.
local prefix = KEYS[1]
local call = redis.call
local position = 0
local touched_lanes = {}

local function argument()
  position = position + 1
  return ARGV[position]
end

local schema = tonumber(argument())
local needed_schema = tonumber(call('GET', prefix .. ':needed_schema') or '0')
if needed_schema > schema then
  return redis.error_reply('NEWERDATA schema ' .. needed_schema .. ' is needed, not ' .. schema)
end

local function each(handle)
  for _ = 1, tonumber(argument()) do
    handle()
  end
end

-- Ids and versions have a fixed width, so that they sort as text and a record's version is at a known
-- place.
local function padded(number)
  return string.format('%016d', number)
end

local function task_key(id)
  return prefix .. ':task:' .. id
end

-- Moves a task to the state `to`. `due` is when it is due, when its lease ends, or when it is deleted.
local function place(id, lane, from, to, due)
  if from and from ~= to then
    call('ZREM', prefix .. ':tasks:' .. from, id)
  end
  call('ZADD', prefix .. ':tasks:' .. to, due, id)
  if to == 'dead' then
    call('ZREM', prefix .. ':lane:' .. lane, id)
  else
    call('ZADD', prefix .. ':lane:' .. lane, due, id)
  end
  touched_lanes[lane] = true
end

local function kind_key(key)
  return prefix .. ':kind:' .. cjson.decode(key)[1]
end

-- For a dead task, this only deletes, and so works on a server that is full.
local function remove_task(id, key, lane, state)
  call('DEL', task_key(id))
  call('HDEL', prefix .. ':task_ids', key)
  call('SREM', kind_key(key), id)
  call('ZREM', prefix .. ':tasks:' .. state, id)
  if state ~= 'dead' then
    call('ZREM', prefix .. ':lane:' .. lane, id)
    touched_lanes[lane] = true
  end
end

-- Notes when it is the turn of each touched lane: when its first task is due, or, if that is later, when a
-- task of it was leased last. So lanes take turns. A lease from the future doesn't count: its clock was wrong.
local function finish_lanes(now)
  for lane in pairs(touched_lanes) do
    local first = call('ZRANGE', prefix .. ':lane:' .. lane, 0, 0, 'WITHSCORES')
    if first[2] then
      local turn = tonumber(first[2])
      local served = tonumber(call('HGET', prefix .. ':served', lane) or '0')
      if served > turn and served <= tonumber(now) then turn = served end
      call('ZADD', prefix .. ':lanes', string.format('%.0f', turn), lane)
    else
      call('ZREM', prefix .. ':lanes', lane)
      call('HDEL', prefix .. ':served', lane)
    end
  end
end
